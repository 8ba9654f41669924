//! Checks the files of the index's storage engine (fjall 3), except its journals, and rebuilds an
//! index from the records that can still be read.
//!
//! The index's directory has one directory for each key space of the engine. The file `current` in
//! it names the current version and the checksum of the version's file `vN`, which lists the sorted
//! tables with the checksum of each. The engine compares only a part of these checksums: a flipped
//! bit can change the list of tables, or the order of their records, without an error.

mod one_bit;
mod rebuild;
mod table;
mod version;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{OsdError, check::Progress, target};

pub use rebuild::rebuild;
pub(crate) use rebuild::replaced_indexes;

/// The directory of the key spaces, in the index's directory.
const KEY_SPACES: &str = "keyspaces";
/// The file with the engine's format, in the index's directory.
const FORMAT: &str = "version";
/// The contents of [`FORMAT`] begin with this.
const FORMAT_MAGIC: [u8; 4] = *b"FJL\x03";

/// Damage in one of the engine's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDamage {
    /// The file.
    pub file: PathBuf,
    /// The damage, such as "the block at byte 4096 does not match its checksum".
    pub why: String,
}

/// Compares all files of a target's index, except the journals, with their checksums. Changes
/// nothing. Reads the whole index and blocks on the disk.
///
/// # Errors
///
/// [`OsdError::Io`] if a directory cannot be read, [`OsdError::Stopping`] after
/// [`Progress::stop`].
pub fn find_damage(target: &Path, progress: &Progress) -> Result<Vec<FileDamage>, OsdError> {
    let index = target::index_dir(target);
    let mut found: Vec<FileDamage> = format_damage(&index).into_iter().collect();
    for key_space in key_spaces(&index)? {
        match version::read(&key_space) {
            Err(damage) => found.push(damage),
            Ok(tables) => {
                for table in tables {
                    progress.add(1)?;
                    found.extend(table::damage(&table));
                }
            }
        }
    }
    Ok(found)
}

/// Like [`find_damage`], without reading the tables: the engine compares the checksums of their
/// blocks at each read.
pub(crate) fn check_versions(index: &Path) -> Result<(), OsdError> {
    let mut damage = format_damage(index);
    for key_space in key_spaces(index)? {
        damage = damage.or(version::read(&key_space).err());
    }
    match damage {
        Some(damage) => Err(OsdError::DamagedIndex(damage)),
        None => Ok(()),
    }
}

fn format_damage(index: &Path) -> Option<FileDamage> {
    let file = index.join(FORMAT);
    let why = match fs::read(&file) {
        Ok(contents) if contents.starts_with(&FORMAT_MAGIC) => return None,
        Ok(_) => "not the format of fjall 3".to_owned(),
        Err(e) => e.to_string(),
    };
    Some(FileDamage { file, why })
}

/// The directories of the key spaces, in the order of their names.
fn key_spaces(index: &Path) -> Result<Vec<PathBuf>, OsdError> {
    let dir = index.join(KEY_SPACES);
    let list = || -> io::Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(&dir)? {
            paths.push(entry?.path());
        }
        paths.sort();
        Ok(paths)
    };
    list().map_err(OsdError::io("list", &dir))
}

#[cfg(test)]
mod tests;
