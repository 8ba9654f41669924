//! Foreign layouts, for files whose data is in another system: their types, and their text as
//! Lustre's lfs prints it. Their values are never interpreted.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use wire::striping::LovLayout;
use wire::{
    LOV_MAGIC_FOREIGN, LU_FOREIGN_TYPE_NONE, LU_FOREIGN_TYPE_PCCRO, LU_FOREIGN_TYPE_PCCRW,
    LU_FOREIGN_TYPE_POSIX, LU_FOREIGN_TYPE_S3, LU_FOREIGN_TYPE_SYMLINK, LovForeignMd, WireStruct,
};

use super::layout::{self, XATTR_BYTES_MAX};

/// The names of types.
const TYPE_NAMES: [(u32, &str); 6] = [
    (LU_FOREIGN_TYPE_NONE, "none"),
    (LU_FOREIGN_TYPE_POSIX, "posix"),
    (LU_FOREIGN_TYPE_PCCRW, "pccrw"),
    (LU_FOREIGN_TYPE_PCCRO, "pccro"),
    (LU_FOREIGN_TYPE_S3, "S3"),
    (LU_FOREIGN_TYPE_SYMLINK, "symlink"),
];

/// Parses a number; decimal, or with a prefix octal or hexadecimal, as strtoul(3).
fn parse_number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None if text.len() > 1 && text.starts_with('0') => u32::from_str_radix(text, 8).ok(),
        None => text.parse().ok(),
    }
}

/// Parses a type: a name or a number.
pub(super) fn parse_type(text: &str) -> Result<u32> {
    if let Some((kind, _)) = TYPE_NAMES.iter().find(|(_, name)| *name == text) {
        return Ok(*kind);
    }
    let names = TYPE_NAMES.map(|(_, name)| name).join(", ");
    let number = parse_number(text).filter(|n| *n != u32::MAX);
    number.with_context(|| format!("'{text}' is not a foreign type: use a number or one of {names}"))
}

/// Parses flags, a hexadecimal number.
fn parse_flags(text: &str) -> Result<u32> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let flags = u32::from_str_radix(digits, 16).ok().filter(|n| *n != u32::MAX);
    flags.with_context(|| format!("'{text}' are not flags: use a hexadecimal number below 0xffffffff"))
}

/// The layout to set.
pub(super) fn request(kind: Option<&str>, flags: Option<&str>, value: &str) -> Result<Bytes> {
    let max = XATTR_BYTES_MAX - LovForeignMd::SIZE;
    if value.is_empty() || value.len() > max {
        bail!("the value of --xattr has 1 to {max} bytes, not {}", value.len());
    }
    let head = LovForeignMd {
        lfm_magic: LOV_MAGIC_FOREIGN,
        lfm_length: value.len() as u32,
        lfm_type: kind.map_or(Ok(LU_FOREIGN_TYPE_NONE), parse_type)?,
        lfm_flags: flags.map_or(Ok(0), parse_flags)?,
    };
    Ok(LovLayout::Foreign(head, Bytes::copy_from_slice(value.as_bytes())).build())
}

/// The text of a layout; with `verbose` also its header.
pub(super) fn text(head: &LovForeignMd, value: &[u8], verbose: bool) -> String {
    let mut out = String::new();
    if verbose {
        let name = TYPE_NAMES.iter().find(|(kind, _)| *kind == head.lfm_type);
        out += &format!(
            "lfm_magic:         0x{:08X}\nlfm_length:          {}\nlfm_type:          0x{:08X} ({})\nlfm_flags:          0x{:08X}\n",
            head.lfm_magic,
            value.len(),
            head.lfm_type,
            name.map_or("unknown", |(_, name)| name),
            head.lfm_flags
        );
    }
    out + &format!("lfm_value:     '{}'\n\n", String::from_utf8_lossy(value))
}

/// Removes files with foreign layouts.
pub(super) fn unlink(paths: &[PathBuf]) -> Result<()> {
    paths.iter().try_for_each(|path| unlink_one(path))
}

fn unlink_one(path: &Path) -> Result<()> {
    let here = path.display();
    let kind = std::fs::symlink_metadata(path).with_context(|| here.to_string())?;
    let layout = match kind.is_file() {
        true => layout::read(path)?,
        false => None,
    };
    if !matches!(layout, Some(LovLayout::Foreign(..))) {
        bail!("{here} has no foreign layout: remove it with rm(1)");
    }
    std::fs::remove_file(path).with_context(|| format!("cannot remove {here}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn text_matches_lfs() {
        let ea = request(Some("symlink"), Some("0xda08"), "uuid@uuid").unwrap();
        let LovLayout::Foreign(head, value) = LovLayout::parse(&ea).unwrap() else {
            panic!("a foreign layout");
        };
        assert_eq!(text(&head, &value, false), "lfm_value:     'uuid@uuid'\n\n");
        assert_eq!(
            text(&head, &value, true),
            "lfm_magic:         0x0BD70BD0\nlfm_length:          9\nlfm_type:          0x0000DA05 (symlink)\n\
             lfm_flags:          0x0000DA08\nlfm_value:     'uuid@uuid'\n\n"
        );
        let unknown = LovForeignMd { lfm_type: 9, ..head };
        assert!(text(&unknown, &value, true).contains("lfm_type:          0x00000009 (unknown)\n"));
    }

    #[test]
    fn types_are_names_or_numbers_and_flags_are_hexadecimal() {
        assert_eq!(
            ["none", "S3", "7", "0xda05", "010"].map(|t| parse_type(t).unwrap()),
            [0, 4, 7, 0xda05, 8]
        );
        for bad in ["", "s3", "4294967295", "0xffffffff", "-1"] {
            assert!(parse_type(bad).is_err(), "{bad}");
        }
        assert_eq!(
            ["da08", "0xda08", "0"].map(|f| parse_flags(f).unwrap()),
            [0xda08, 0xda08, 0]
        );
        for bad in ["foo", "ffffffff", "", "0x"] {
            assert!(parse_flags(bad).is_err(), "{bad}");
        }
        assert!(request(None, None, "").is_err());
        assert!(request(None, None, &"x".repeat(65521)).is_err());
        assert!(request(None, None, &"x".repeat(65520)).is_ok());
    }
}
