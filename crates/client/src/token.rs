//! Tokens as text: `NUMBER-` and 64 hexadecimal digits, the key.
//!
//! Never shown: neither `Debug` nor an error has any digit of a key. A program takes a token from a
//! file or another program's output, never from its command line, which every user of a machine
//! can read.

use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;

use flagstone_wire::proof::{KEY_BYTES, Key};

/// The longest text of a token with what may surround it in a file, in bytes.
const FILE_MAX_BYTES: u64 = 4096;

/// A token: which one of its volume it is, and its key.
#[derive(Clone)]
pub struct Token {
    /// Its number among the tokens of the volume.
    pub number: u32,
    /// Its key.
    pub key: Key,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}-..)", self.number)
    }
}

/// Why a text is not a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenError;

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "reading a token: it must be a number, a hyphen and 64 hexadecimal digits, as \
             `volume create` prints it, and this is something else",
        )
    }
}

impl std::error::Error for TokenError {}

impl FromStr for Token {
    type Err = TokenError;

    /// The text of a token; spaces and line ends around it don't count.
    fn from_str(text: &str) -> Result<Token, TokenError> {
        let (number, digits) = text.trim().split_once('-').ok_or(TokenError)?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number || digits.len() != 2 * KEY_BYTES {
            return Err(TokenError);
        }
        let mut key = Key([0; KEY_BYTES]);
        for (byte, pair) in key.0.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16).ok_or(TokenError);
            *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
        }
        let number = number.parse().map_err(|_| TokenError)?;
        Ok(Token { number, key })
    }
}

impl Token {
    /// The token that a file has.
    pub fn from_file(path: &Path) -> io::Result<Token> {
        use std::io::Read;
        let wrong = |error: io::Error| {
            let text = format!("reading the token in {}: {error}", path.display());
            io::Error::new(error.kind(), text)
        };
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(wrong)?;
        let read = file.take(FILE_MAX_BYTES).read_to_string(&mut text);
        read.map_err(wrong)?;
        let not_one = |error| wrong(io::Error::new(io::ErrorKind::InvalidData, error));
        text.parse().map_err(not_one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(number: &str) -> String {
        let digits: String = (0..32).map(|byte| format!("{byte:02x}")).collect();
        format!("{number}-{digits}")
    }

    #[test]
    fn a_token_is_read_from_text() {
        let token: Token = format!(" {}\n", text("17")).parse().unwrap();
        assert_eq!(token.number, 17);
        let expected: Vec<u8> = (0..32).collect();
        assert_eq!(token.key.0.to_vec(), expected);
        let upper: Token = text("4294967295").to_uppercase().parse().unwrap();
        assert_eq!(upper.number, u32::MAX);
        assert_eq!(upper.key.0.to_vec(), expected);
    }

    #[test]
    fn anything_else_is_refused() {
        let good = text("1");
        let mut wrong: Vec<String> = vec![String::new(), "1".to_owned(), text(""), text("+1")];
        wrong.push(text("4294967296"));
        wrong.push(good.replace('-', ""));
        wrong.push(format!("{good}0"));
        wrong.push(good[..good.len() - 1].to_owned());
        wrong.push(good.replace("00", "0g"));
        wrong.push(good.replace("00", "+0"));
        for text in wrong {
            assert_eq!(text.parse::<Token>().unwrap_err(), TokenError, "{text}");
        }
    }

    #[test]
    fn no_digit_of_a_key_is_shown() {
        let token: Token = text("5").parse().unwrap();
        assert_eq!(format!("{token:?}"), "Token(5-..)");
    }

    #[test]
    fn a_token_is_read_from_a_file() {
        let path = std::env::temp_dir().join(format!("flagstone-token-{}", std::process::id()));
        std::fs::write(&path, text("9")).unwrap();
        assert_eq!(Token::from_file(&path).unwrap().number, 9);
        std::fs::write(&path, text("9").replace("00", "zz")).unwrap();
        let error = Token::from_file(&path).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(
            error.contains("flagstone-token") && error.contains("hexadecimal"),
            "{error}"
        );
        assert!(!error.contains("0102"), "{error}");
        let missing = Token::from_file(&path).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
