//! The current version of a key space: the list of its sorted tables.
//!
//! `current` has the version's number N (u64), the XXH3 (128 bits) of the file `vN`, and the kind
//! of checksum (0). `vN` is an archive; its section `tables` has the number of levels (u8), for
//! each level the number of runs (u8), for each run the number of tables (u32), and for each table
//! its number (u64), the kind of checksum (0), the XXH3 of its file (128 bits), and a sequence
//! number that is added to those of its records (u64). All numbers are little-endian.

use std::{
    fs,
    io::Cursor,
    path::{Path, PathBuf},
};

use wire::Reader;
use xxhash_rust::xxh3::xxh3_128;

use super::FileDamage;

/// The file that names the current version.
const CURRENT: &str = "current";
/// The directory of the tables.
const TABLES: &str = "tables";
/// The section of a version's file that lists the tables.
const TABLES_SECTION: &[u8] = b"tables";
/// The only kind of checksum.
const XXH3: u8 = 0;

/// A table of the current version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableFile {
    /// Its file.
    pub(super) path: PathBuf,
    /// The XXH3 of the file.
    pub(super) checksum: u128,
    /// Is added to the sequence numbers of the records.
    pub(super) sequence_base: u64,
}

/// Reads the current version of a key space, and compares it with its checksum.
pub(super) fn read(key_space: &Path) -> Result<Vec<TableFile>, FileDamage> {
    let current = key_space.join(CURRENT);
    let contents = read_file(&current)?;
    let (number, checksum) = parse_current(&contents).ok_or_else(|| FileDamage {
        file: current.clone(),
        why: "malformed".into(),
    })?;
    let file = key_space.join(format!("v{number}"));
    let version = read_file(&file)?;
    if xxh3_128(&version) != checksum {
        let why = format!("does not match its checksum in {}", current.display());
        return Err(FileDamage { file, why });
    }
    parse_version(&version, &key_space.join(TABLES)).ok_or_else(|| FileDamage {
        file,
        why: "malformed, although its checksum is right".into(),
    })
}

/// All tables in a key space's directory, for a version that cannot be read. Their checksums are
/// unknown (0).
pub(super) fn list_tables(key_space: &Path) -> std::io::Result<Vec<TableFile>> {
    let mut tables = Vec::new();
    for entry in fs::read_dir(key_space.join(TABLES))? {
        tables.push(TableFile {
            path: entry?.path(),
            checksum: 0,
            sequence_base: 0,
        });
    }
    Ok(tables)
}

fn read_file(file: &Path) -> Result<Vec<u8>, FileDamage> {
    fs::read(file).map_err(|e| FileDamage {
        file: file.to_owned(),
        why: e.to_string(),
    })
}

/// The number of the version, and the checksum of its file.
fn parse_current(contents: &[u8]) -> Option<(u64, u128)> {
    let (number, rest) = contents.split_first_chunk::<8>()?;
    let (checksum, kind) = rest.split_first_chunk::<16>()?;
    (kind == [XXH3]).then_some((u64::from_le_bytes(*number), u128::from_le_bytes(*checksum)))
}

fn parse_version(version: &[u8], dir: &Path) -> Option<Vec<TableFile>> {
    let archive = sfa::Reader::from_reader(&mut Cursor::new(version)).ok()?;
    let section = archive.toc().section(TABLES_SECTION)?;
    let start = usize::try_from(section.pos()).ok()?;
    let end = start.checked_add(usize::try_from(section.len()).ok()?)?;
    let mut reader = Reader::new("list of tables", version.get(start..end)?);
    let mut tables = Vec::new();
    for _ in 0..reader.u8().ok()? {
        for _ in 0..reader.u8().ok()? {
            for _ in 0..reader.u32().ok()? {
                let number = reader.u64().ok()?;
                if reader.u8().ok()? != XXH3 {
                    return None;
                }
                let (low, high) = (reader.u64().ok()?, reader.u64().ok()?);
                tables.push(TableFile {
                    path: dir.join(number.to_string()),
                    checksum: u128::from(high) << 64 | u128::from(low),
                    sequence_base: reader.u64().ok()?,
                });
            }
        }
    }
    Some(tables)
}
