//! The format of `lfs find -printf`: text, escapes, directives of find(1), and those of Lustre,
//! which begin with `%L`.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use anyhow::{Result, bail};
use wire::file_mode;

use super::super::layout;
use super::test::Candidate;
use crate::clock::Date;

/// A part of the output for a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Text, without escapes.
    Text(Vec<u8>),
    /// A value of the file, by the letter of its directive.
    Value(u8),
    /// A time in seconds since 1970, by its letter: `%A@`.
    Seconds(u8),
    /// A value of Lustre, by the letter after `%L`.
    Lustre(u8),
}

const VALUES: &[u8] = b"abcGkmnpstUy";
const TIMES: &[u8] = b"ACT";
const LUSTRE_VALUES: &[u8] = b"cFiopPS";

/// Parses a format.
pub(super) fn parse(format: &[u8]) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut text = Vec::new();
    let mut bytes = format.iter().copied();
    while let Some(byte) = bytes.next() {
        let piece = match byte {
            b'\\' => {
                text.push(escape(bytes.next())?);
                continue;
            }
            b'%' => match (bytes.next(), bytes.clone().next()) {
                (Some(b'%'), _) => {
                    text.push(b'%');
                    continue;
                }
                (Some(b'L'), Some(letter)) if LUSTRE_VALUES.contains(&letter) => {
                    bytes.next();
                    Piece::Lustre(letter)
                }
                (Some(letter), Some(b'@')) if TIMES.contains(&letter) => {
                    bytes.next();
                    Piece::Seconds(letter)
                }
                (Some(letter), _) if VALUES.contains(&letter) => Piece::Value(letter),
                (letter, next) => {
                    let is_part = |next: &u8| letter == Some(b'L') || *next == b'@';
                    let directive: Vec<u8> = letter.into_iter().chain(next.filter(is_part)).collect();
                    bail!(
                        "the directive %{} is not available (see `nacre lfs find --help`)",
                        String::from_utf8_lossy(&directive)
                    )
                }
            },
            other => {
                text.push(other);
                continue;
            }
        };
        if !text.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut text)));
        }
        pieces.push(piece);
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    Ok(pieces)
}

/// The byte for the letter after a backslash.
fn escape(letter: Option<u8>) -> Result<u8> {
    Ok(match letter {
        Some(b'n') => b'\n',
        Some(b't') => b'\t',
        Some(b'0') => 0,
        Some(b'\\') => b'\\',
        other => bail!(
            "the escape \\{} is not available: use \\n, \\t, \\0 or \\\\",
            other.map(char::from).unwrap_or_default()
        ),
    })
}

/// The output for a file.
pub(super) fn format(pieces: &[Piece], file: &mut Candidate<'_>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Text(text) => out.extend_from_slice(text),
            Piece::Value(b'p') => out.extend_from_slice(file.path.as_os_str().as_bytes()),
            Piece::Value(letter) => out.extend_from_slice(value(*letter, file)?.as_bytes()),
            Piece::Seconds(letter) => {
                let meta = file.meta()?;
                let (seconds, nanoseconds) = match letter {
                    b'A' => (meta.atime(), meta.atime_nsec()),
                    b'C' => (meta.ctime(), meta.ctime_nsec()),
                    _ => (meta.mtime(), meta.mtime_nsec()),
                };
                out.extend_from_slice(format!("{seconds}.{nanoseconds:09}").as_bytes());
            }
            Piece::Lustre(letter) => out.extend_from_slice(lustre_value(*letter, file)?.as_bytes()),
        }
    }
    Ok(out)
}

/// The value of a directive of find(1). Times are in UTC.
fn value(letter: u8, file: &Candidate<'_>) -> Result<String> {
    let meta = file.meta()?;
    let date = |seconds| Date::from_unix(seconds).ctime();
    Ok(match letter {
        b'a' => date(meta.atime()),
        b'b' => meta.blocks().to_string(),
        b'c' => date(meta.ctime()),
        b'G' => meta.gid().to_string(),
        b'k' => meta.blocks().div_ceil(2).to_string(),
        b'm' => format!("{:o}", meta.mode() & 0o7777),
        b'n' => meta.nlink().to_string(),
        b's' => meta.size().to_string(),
        b't' => date(meta.mtime()),
        b'U' => meta.uid().to_string(),
        // The first letter of a mode is the type: a dash for a regular file, for which find(1)
        // prints `f`.
        _ => file_mode(meta.mode())[..1].replace('-', "f"),
    })
}

/// The value of a directive of Lustre. A file without a layout has no stripes.
fn lustre_value(letter: u8, file: &mut Candidate<'_>) -> Result<String> {
    match letter {
        b'F' => return Ok(file.ids()?.fid.clone()),
        b'P' => return Ok(file.ids()?.projid.to_string()),
        _ => {}
    }
    let Some(layout) = file.layout()? else {
        return Ok(match letter {
            b'p' | b'o' => String::new(),
            b'i' => "-1".to_owned(),
            _ => "0".to_owned(),
        });
    };
    let osts = || layout.objects.iter().map(|o| o.l_ost_idx.to_string());
    Ok(match letter {
        b'c' => layout::signed(layout.stripe_count).to_string(),
        b'S' => layout.stripe_size.to_string(),
        b'i' => osts().next().unwrap_or_else(|| "-1".to_owned()),
        b'o' => osts().collect::<Vec<_>>().join(","),
        _ => layout.pool.to_string(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn format_is_split_into_text_and_values() {
        let pieces = parse(br"%LF\ts=%s %A@%%\n").unwrap();
        let text = |text: &str| Piece::Text(text.into());
        assert_eq!(
            pieces,
            [
                Piece::Lustre(b'F'),
                text("\ts="),
                Piece::Value(b's'),
                text(" "),
                Piece::Seconds(b'A'),
                text("%\n"),
            ]
        );
        assert!(parse(b"").unwrap().is_empty());
    }

    #[test]
    fn unknown_directives_and_escapes_are_named() {
        for (format, part) in [
            ("%w,", "%w"),
            ("%Lz", "%Lz"),
            ("%A", "%A"),
            ("%", "%"),
            ("\\q", "\\q"),
        ] {
            let error = parse(format.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(&format!("{part} is not available")), "{error}");
        }
    }
}
