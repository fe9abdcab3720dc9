//! Results in a machine's form, without a serialisation library: whoever prints JSON turns a
//! [`Tree`] into it in a few lines.

/// A value of a result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tree {
    /// Nothing.
    None,
    /// Yes or no.
    Flag(bool),
    /// A count, a size, a position.
    Number(u64),
    /// Words, names, ids and checksums.
    Text(String),
    /// Several of a kind.
    List(Vec<Tree>),
    /// Named values in the order they read best.
    Fields(Vec<(&'static str, Tree)>),
}

impl Tree {
    /// Several of a kind.
    pub fn list(items: impl IntoIterator<Item = Tree>) -> Tree {
        Tree::List(items.into_iter().collect())
    }

    /// Text, from anything that can be shown.
    pub fn text(value: impl ToString) -> Tree {
        Tree::Text(value.to_string())
    }

    /// The value, or nothing.
    pub fn option(value: Option<impl Into<Tree>>) -> Tree {
        value.map_or(Tree::None, Into::into)
    }
}

impl From<bool> for Tree {
    fn from(value: bool) -> Tree {
        Tree::Flag(value)
    }
}

impl From<u64> for Tree {
    fn from(value: u64) -> Tree {
        Tree::Number(value)
    }
}

impl From<u32> for Tree {
    fn from(value: u32) -> Tree {
        Tree::Number(u64::from(value))
    }
}

impl From<u16> for Tree {
    fn from(value: u16) -> Tree {
        Tree::Number(u64::from(value))
    }
}

impl From<usize> for Tree {
    fn from(value: usize) -> Tree {
        Tree::Number(value as u64)
    }
}

impl From<&str> for Tree {
    fn from(value: &str) -> Tree {
        Tree::Text(value.to_owned())
    }
}

impl From<String> for Tree {
    fn from(value: String) -> Tree {
        Tree::Text(value)
    }
}
