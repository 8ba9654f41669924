//! Names formatted from a number like printf: `%d`, `%05d`, `%x`, `%%`.

use crate::BenchError;

/// A valid format: text with any number of placeholders for one number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    /// The number with at least `width` characters, padded with zeros or spaces.
    Number {
        width: usize,
        zero: bool,
        hex: bool,
    },
}

/// The largest field width.
const WIDTH_MAX: usize = 64;

impl Format {
    /// Parses a format.
    ///
    /// # Errors
    ///
    /// The format has an unknown conversion, or a width above 64.
    pub fn parse(text: &str) -> Result<Format, BenchError> {
        let error = || {
            BenchError::Options(format!(
                "'{text}' is not a format of one number: use %d, %5d, %05d, %x and %%"
            ))
        };
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('%') {
            pieces.push(Piece::Text(before.to_owned()));
            let end = after.find(|c: char| !c.is_ascii_digit()).ok_or_else(error)?;
            let (digits, kind) = after.split_at(end);
            let (zero, hex) = match (digits, kind.chars().next()) {
                ("", Some('%')) => {
                    pieces.push(Piece::Text("%".to_owned()));
                    rest = &kind[1..];
                    continue;
                }
                (digits, Some('d' | 'i' | 'u')) => (digits.starts_with('0'), false),
                (digits, Some('x')) => (digits.starts_with('0'), true),
                _ => return Err(error()),
            };
            let width = digits.parse().unwrap_or(0);
            if width > WIDTH_MAX {
                return Err(error());
            }
            pieces.push(Piece::Number { width, zero, hex });
            rest = &kind[1..];
        }
        pieces.push(Piece::Text(rest.to_owned()));
        Ok(Format(pieces))
    }

    /// Formats a number.
    pub fn name(&self, n: u64) -> String {
        let piece = |piece: &Piece| match *piece {
            Piece::Text(ref text) => text.clone(),
            Piece::Number {
                width,
                zero: true,
                hex: true,
            } => format!("{n:0width$x}"),
            Piece::Number {
                width,
                zero: true,
                hex: false,
            } => format!("{n:0width$}"),
            Piece::Number {
                width,
                zero: false,
                hex: true,
            } => format!("{n:width$x}"),
            Piece::Number {
                width,
                zero: false,
                hex: false,
            } => format!("{n:width$}"),
        };
        self.0.iter().map(piece).collect()
    }

    /// Whether different numbers give different names.
    pub fn is_unique(&self) -> bool {
        self.0.iter().any(|p| matches!(p, Piece::Number { .. }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Format;

    #[test]
    fn names_match_printf() {
        let formatted = |text: &str, n| Format::parse(text).unwrap().name(n);
        assert_eq!(formatted("f%d", 7), "f7");
        assert_eq!(formatted("d%05d/100%%", 42), "d00042/100%");
        assert_eq!(formatted("%x-%4d", 255), "ff- 255");
        assert_eq!(formatted("f3-%%d", 9), "f3-%d");
        assert!(!Format::parse("%%d").unwrap().is_unique());
        for bad in ["%", "%s", "%5", "%9999d"] {
            assert!(Format::parse(bad).is_err(), "{bad}");
        }
    }
}
