//! A Rust source split into code and comments, and the shape of its functions.
//!
//! Not a parser: just enough lexing to know what is a comment, what is a literal, and where braces
//! match. Both views keep every byte position, so lines can be counted in either.

/// One Rust source seen two ways; both texts are as long as the source.
pub(super) struct Source {
    /// The code, with comments and the contents of literals replaced by spaces.
    pub(super) code: String,
    /// The comments, with everything else replaced by spaces.
    pub(super) comments: String,
}

/// A function with a body.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Function {
    pub(super) name: String,
    /// First line, counted from one.
    pub(super) line: usize,
    /// Lines from `fn` to the closing brace.
    pub(super) lines: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Code,
    Comment,
    Literal,
}

impl Source {
    pub(super) fn new(text: &str) -> Source {
        let classes = classify(text.as_bytes());
        let view = |wanted: Class| -> String {
            let pick = |(byte, class): (u8, &Class)| match byte {
                b'\n' => '\n',
                _ if *class == wanted && byte.is_ascii() => char::from(byte),
                _ => ' ',
            };
            text.bytes().zip(&classes).map(pick).collect()
        };
        Source {
            code: view(Class::Code),
            comments: view(Class::Comment),
        }
    }

    /// Every function that has a body, nested ones included.
    pub(super) fn functions(&self) -> Vec<Function> {
        let code = self.code.as_bytes();
        let mut found = Vec::new();
        let mut from = 0;
        while let Some(at) = self.code[from..].find("fn ").map(|at| from + at) {
            from = at + 3;
            let starts_word = at == 0 || !is_word(code[at - 1]);
            let name: String = self.code[from..]
                .trim_start()
                .chars()
                .take_while(|c| is_word(*c as u8))
                .collect();
            if !starts_word || name.is_empty() {
                continue;
            }
            if let Some((open, close)) = body(code, from) {
                let line = line_of(code, at);
                debug_assert!(open < close);
                found.push(Function {
                    name,
                    line,
                    lines: line_of(code, close) - line + 1,
                });
            }
        }
        found
    }
}

/// The positions of a function's opening and closing brace, if it has a body.
fn body(code: &[u8], from: usize) -> Option<(usize, usize)> {
    let mut nested = 0_i64;
    let mut open = None;
    for (at, byte) in code.iter().enumerate().skip(from) {
        match (byte, open) {
            (b'(' | b'[', None) => nested += 1,
            (b')' | b']', None) => nested -= 1,
            (b';', None) if nested == 0 => return None,
            (b'{', None) if nested == 0 => {
                open = Some(at);
                nested = 1;
            }
            (b'{', Some(_)) => nested += 1,
            (b'}', Some(open)) => {
                nested -= 1;
                if nested == 0 {
                    return Some((open, at));
                }
            }
            _ => {}
        }
    }
    None
}

/// The line of a position, counted from one.
pub(super) fn line_of(text: &[u8], at: usize) -> usize {
    text[..at].iter().filter(|byte| **byte == b'\n').count() + 1
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// What each byte of the text belongs to.
fn classify(text: &[u8]) -> Vec<Class> {
    let mut classes = vec![Class::Code; text.len()];
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let word_before = at > 0 && is_word(text[at - 1]);
        let (class, length) = if rest.starts_with(b"//") {
            let end = rest.iter().position(|byte| *byte == b'\n');
            (Class::Comment, end.unwrap_or(rest.len()))
        } else if rest.starts_with(b"/*") {
            (Class::Comment, block_comment_length(rest))
        } else if let Some(length) = raw_string_length(rest).filter(|_| !word_before) {
            (Class::Literal, length)
        } else if rest[0] == b'"' {
            (Class::Literal, quoted_length(rest, b'"'))
        } else if let Some(length) = char_length(rest) {
            (Class::Literal, length)
        } else {
            (Class::Code, 1)
        };
        let end = (at + length.max(1)).min(text.len());
        classes[at..end].fill(class);
        at = end;
    }
    classes
}

/// Block comments nest in Rust.
fn block_comment_length(rest: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// `r"..."`, `r#"..."#`, and the same after a `b` or `c`.
fn raw_string_length(rest: &[u8]) -> Option<usize> {
    let prefix = usize::from(matches!(rest.first(), Some(b'b' | b'c')));
    if rest.get(prefix) != Some(&b'r') {
        return None;
    }
    let hashes = rest[prefix + 1..]
        .iter()
        .take_while(|byte| **byte == b'#')
        .count();
    let open = prefix + 1 + hashes;
    if rest.get(open) != Some(&b'"') {
        return None;
    }
    let closing: Vec<u8> = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
    let body = &rest[open + 1..];
    let end = body
        .windows(closing.len())
        .position(|window| window == closing.as_slice());
    Some(end.map_or(rest.len(), |end| open + 1 + end + closing.len()))
}

fn quoted_length(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// A character literal; `None` for a lifetime such as `'a`.
fn char_length(rest: &[u8]) -> Option<usize> {
    if rest.first() != Some(&b'\'') {
        return None;
    }
    match rest.get(1)? {
        b'\\' => Some(quoted_length(rest, b'\'')),
        // One character, of up to four bytes, then the closing quote.
        _ => (2..=5)
            .find(|end| rest.get(*end) == Some(&b'\''))
            .and_then(|end| {
                let one = std::str::from_utf8(&rest[1..end]).ok()?;
                (one.chars().count() == 1).then_some(end + 1)
            }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_told_from_code() {
        let text = "a(\"// no {\"); // yes }\nlet c = '{'; let d: &'a str = r#\"/* \"no\" \"#; /* in /* deep */ } */ b";
        let source = Source::new(text);
        assert_eq!(source.code.len(), text.len());
        assert!(!source.code.contains(['{', '}']));
        assert!(source.code.ends_with('b'));
        assert!(source.code.contains("&'a str"));
        assert!(source.comments.contains("// yes }"));
        assert!(!source.comments.contains("no"));
        assert!(source.comments.contains("/* in /* deep */ } */"));
    }

    #[test]
    fn an_escaped_quote_ends_no_string() {
        let source = Source::new(r#"x("\"}", '\'', b"\\") y"#);
        assert!(source.code.ends_with('y'));
        assert!(!source.code.contains('}'));
    }

    #[test]
    fn function_lengths_count_from_fn_to_brace() {
        let text = "trait T { fn none(&self); }\n\npub fn a<const N: usize>(x: [u8; 3])\n-> u8 {\n  \
                    if x { y } // }\n}\nfn b() {}\nlet f: fn (u8) = b;\n";
        let functions = Source::new(text).functions();
        let shape: Vec<(&str, usize, usize)> = functions
            .iter()
            .map(|f| (f.name.as_str(), f.line, f.lines))
            .collect();
        assert_eq!(shape, [("a", 3, 4), ("b", 7, 1)]);
    }
}
