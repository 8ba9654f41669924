//! Parses the arguments of `lst add_test`: `ping`, or `brw write check=full size=1M off=8`. No I/O.

use crate::command::TestKind;
use wire::{LNET_MTU, LST_BRW_CHECK_DISCARD, LST_BRW_CHECK_FULL, LST_BRW_CHECK_NONE, LST_BRW_CHECK_SIMPLE};

/// Size of a bulk transfer without `size=`, in bytes.
const SIZE_DEFAULT: u32 = 4096;

/// Parses the words of a test.
///
/// # Errors
///
/// A message for the user that names the wrong word.
pub fn parse_test(words: &[String]) -> Result<TestKind, String> {
    let (name, rest) = words.split_first().ok_or("no test given: use ping or brw")?;
    match name.to_lowercase().as_str() {
        "ping" => Ok(TestKind::Ping),
        "brw" => parse_brw(rest),
        _ => Err(format!("unknown test '{name}': use ping or brw")),
    }
}

fn parse_brw(words: &[String]) -> Result<TestKind, String> {
    let (mut write, mut size, mut offset) = (false, SIZE_DEFAULT, 0);
    let (mut check, mut skip_rx_copy) = (None, false);
    for word in words {
        let lower = word.to_lowercase();
        match lower.split_once('=') {
            Some(("check" | "c", kind)) => {
                check = Some(match kind {
                    "full" => LST_BRW_CHECK_FULL,
                    "simple" => LST_BRW_CHECK_SIMPLE,
                    "discard" => LST_BRW_CHECK_DISCARD,
                    "none" => LST_BRW_CHECK_NONE,
                    _ => return Err(format!("'{word}': use check=none, simple, full or discard")),
                });
            }
            Some(("size" | "s", text)) => size = parse_size(text).ok_or_else(|| size_error(word))?,
            Some(("off", text)) => {
                let parsed = text.parse().ok().filter(|off: &u32| off.is_multiple_of(8));
                offset = parsed.ok_or_else(|| format!("'{word}': use a multiple of 8"))?;
            }
            None if ["read", "r"].contains(&lower.as_str()) => write = false,
            None if ["write", "w"].contains(&lower.as_str()) => write = true,
            None if lower == "skip_rx_copy" || lower == "skip-rx-copy" => skip_rx_copy = true,
            _ => {
                return Err(format!(
                    "'{word}': use read, write, check=, size=, off= or skip_rx_copy"
                ));
            }
        }
    }
    if skip_rx_copy && check.is_some_and(|check| check != LST_BRW_CHECK_DISCARD) {
        return Err("skip_rx_copy cannot be combined with this check=: omit one of them".to_owned());
    }
    let default = if skip_rx_copy {
        LST_BRW_CHECK_DISCARD
    } else {
        LST_BRW_CHECK_NONE
    };
    Ok(TestKind::Brw {
        write,
        check: check.unwrap_or(default),
        size,
        offset,
    })
}

fn size_error(word: &str) -> String {
    format!("'{word}': use a number of bytes from 1 to 1M, such as 4K")
}

fn parse_size(text: &str) -> Option<u32> {
    let (digits, unit) = match text.strip_suffix('k') {
        Some(digits) => (digits, 1 << 10),
        None => text
            .strip_suffix('m')
            .map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    let size = digits.parse::<u32>().ok()?.checked_mul(unit)?;
    Some(size).filter(|size| (1..=LNET_MTU).contains(size))
}

#[cfg(test)]
mod tests {
    use super::{
        LST_BRW_CHECK_DISCARD, LST_BRW_CHECK_FULL, LST_BRW_CHECK_NONE, LST_BRW_CHECK_SIMPLE, parse_test,
    };
    use crate::TestKind;

    fn parse(text: &str) -> Result<TestKind, String> {
        parse_test(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    const READ: TestKind = TestKind::Brw {
        write: false,
        check: LST_BRW_CHECK_NONE,
        size: 4096,
        offset: 0,
    };

    #[test]
    fn tests_are_parsed_in_the_syntax_of_lustre() {
        assert_eq!(parse("ping"), Ok(TestKind::Ping));
        assert_eq!(parse("brw"), Ok(READ));
        assert_eq!(
            parse("BRW read check=simple size=1M").map(|t| matches!(
                t,
                TestKind::Brw {
                    check: LST_BRW_CHECK_SIMPLE,
                    size: 1_048_576,
                    ..
                }
            )),
            Ok(true)
        );
        let write = TestKind::Brw {
            write: true,
            check: LST_BRW_CHECK_FULL,
            size: 5000,
            offset: 16,
        };
        assert_eq!(parse("brw w c=full s=5000 off=16"), Ok(write));
        assert_eq!(
            parse("brw r skip_rx_copy check=discard").map(|t| matches!(
                t,
                TestKind::Brw {
                    check: LST_BRW_CHECK_DISCARD,
                    ..
                }
            )),
            Ok(true)
        );
    }

    #[test]
    fn unknown_words_are_errors() {
        for bad in [
            "",
            "pong",
            "brw up",
            "brw size=0",
            "brw size=2M",
            "brw off=4",
            "brw check=some",
            "brw size=9999m",
            "brw skip_rx_copy check=full",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
