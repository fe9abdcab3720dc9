//! Enums whose values are numbers on the wire.

/// Declares an enum with a number and a name for each value, and both ways between them.
macro_rules! numbered {
    (
        $(#[$meta:meta])*
        $name:ident: $repr:ident {
            $( $(#[$variant_meta:meta])* $variant:ident = $number:literal $text:literal, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr($repr)]
        pub enum $name {
            $( $(#[$variant_meta])* $variant = $number, )*
        }

        impl $name {
            /// All of them, by number.
            pub const ALL: &[$name] = &[$($name::$variant),*];

            /// The one of this number; `None` if there is none in this version of the protocol.
            pub const fn from_number(number: $repr) -> Option<$name> {
                match number {
                    $( $number => Some($name::$variant), )*
                    _ => None,
                }
            }

            /// Its number in headers.
            pub const fn number(self) -> $repr {
                self as $repr
            }

            /// Its name as the protocol's page has it.
            pub const fn name(self) -> &'static str {
                match self {
                    $( $name::$variant => $text, )*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

pub(crate) use numbered;
