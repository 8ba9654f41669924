//! A target's directory: what `mkfs` leaves in it, and what keeps two servers from opening it at once.
//!
//! `target` is a small text file, one `name = value` a line, written last when a target is made, so that a
//! directory without it but with `target.new` is known to be half made. `lock` is held (flock) by the server that
//! runs on it: a lock of the kernel's, so that it is gone when the process is, however it ends. The format is
//! described in `docs/on-disk-format.md`.

mod label;

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use crate::files;

pub use label::{FORMAT_VERSION, TargetKind, TargetLabel};

pub(crate) const LABEL: &str = "target";
pub(crate) const LABEL_NEW: &str = "target.new";
/// A label that is being replaced ([`files::replace`]).
pub(crate) const LABEL_REPLACED: &str = ".target.new";
pub(crate) const LABEL_DESTROYED: &str = "target.destroyed";
pub(crate) const LOCK: &str = "lock";
/// Directory of the index, in a target's directory.
pub(crate) const INDEX: &str = "index";
/// Directory of the objects, in an object target's directory.
pub(crate) const OBJECTS: &str = "objects";
/// In the directory of the objects: the uuid of the target that they belong to.
pub(crate) const OBJECTS_MARK: &str = "uuid";

/// Why a target's directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// There is nothing of ours.
    #[error("{}: not a Nacre target (no file 'target' in it): make one with 'nacre mkfs'", .0.display())]
    NotATarget(PathBuf),
    /// No such directory.
    #[error("{}: no such directory", .0.display())]
    NoDirectory(PathBuf),
    /// The directory holds other things.
    #[error("{}: not empty and not a Nacre target: '{found}' is in it; choose an empty or new directory", path.display())]
    WrongDirectory {
        /// The directory.
        path: PathBuf,
        /// Something in it.
        found: String,
    },
    /// Making it was interrupted.
    #[error("{}: half-made target (its mkfs did not finish): remove the directory and make it again", .0.display())]
    HalfMade(PathBuf),
    /// Its deletion was interrupted.
    #[error("{}: half-deleted target: finish that with 'nacre destroy'", .0.display())]
    HalfDestroyed(PathBuf),
    /// There is a target already.
    #[error("{}: there is a target already ({svname}); remove the directory to make a new one", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
        /// The target that is there.
        svname: String,
    },
    /// A store of a target that has run before is not there.
    #[error("{}: {why}, although {svname} has run before. Is its disk mounted? Nothing was changed; mount the disk, or restore the target from a backup", path.display())]
    Lost {
        /// The store's directory.
        path: PathBuf,
        /// The target.
        svname: String,
        /// What is wrong with it.
        why: String,
    },
    /// A later version wrote it.
    #[error("{}: store of format {found}, this version knows formats up to {FORMAT_VERSION}: use the version of Nacre that made it, or a newer one", path.display())]
    NewerFormat {
        /// The directory.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// A server runs on it.
    #[error("{}: in use by another process{}", path.display(), by.as_deref().map(|p| format!(" ({p})")).unwrap_or_default())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process that holds it, as it wrote itself into the lock file.
        by: Option<String>,
    },
    /// The label does not parse.
    #[error("{}: bad label: line {line}: {why}", path.display())]
    BadLabel {
        /// The label file.
        path: PathBuf,
        /// The line's number; 0: the whole file.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A target's directory, locked: no other server opens it while this lives.
#[derive(Debug)]
pub struct TargetDir {
    path: PathBuf,
    label: TargetLabel,
    _lock: fs::File,
}

impl TargetDir {
    /// Makes a target in `path`, which is made too, or is empty. `fill` puts into the directory what the target
    /// needs from the start; only when it is done and on disk does the directory become a target.
    pub fn create(
        path: &Path,
        label: &TargetLabel,
        fill: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Result<TargetDir, TargetError> {
        let io = |p: &Path| {
            let path = p.to_path_buf();
            move |source| TargetError::Io { path, source }
        };
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(io(parent))?;
        }
        if !path.is_dir() {
            files::create_dir(path).map_err(io(path))?;
        }
        match TargetLabel::read(path) {
            Ok(old) => {
                return Err(TargetError::Exists {
                    path: path.into(),
                    svname: old.svname(),
                });
            }
            Err(TargetError::NotATarget(_)) => {}
            Err(e) => return Err(e),
        }
        if let Some(entry) = fs::read_dir(path).map_err(io(path))?.next() {
            let found = entry
                .map_err(io(path))?
                .file_name()
                .to_string_lossy()
                .into_owned();
            return Err(TargetError::WrongDirectory {
                path: path.into(),
                found,
            });
        }
        // From here on the directory is known as half made, until the rename.
        let new = path.join(LABEL_NEW);
        let mut file = files::options()
            .write(true)
            .create_new(true)
            .open(&new)
            .map_err(io(&new))?;
        let lock = lock(path, true)?;
        files::restrict(path).map_err(io(path))?;
        file.write_all(label.to_text().as_bytes()).map_err(io(&new))?;
        fill(path).map_err(io(path))?;
        file.sync_all().map_err(io(&new))?;
        fs::rename(&new, path.join(LABEL)).map_err(io(&new))?;
        files::sync_dir(path).map_err(io(path))?;
        let parent = files::parent(path);
        files::sync_dir(&parent).map_err(io(&parent))?;
        Ok(TargetDir {
            path: path.into(),
            label: label.clone(),
            _lock: lock,
        })
    }

    /// Opens a target that `create` made, for this process alone.
    pub fn open(path: &Path) -> Result<TargetDir, TargetError> {
        TargetDir::open_locked(path, true)
    }

    /// The same, to look at the target: nothing in the directory changes.
    pub fn open_unchanged(path: &Path) -> Result<TargetDir, TargetError> {
        TargetDir::open_locked(path, false)
    }

    fn open_locked(path: &Path, note_pid: bool) -> Result<TargetDir, TargetError> {
        let label = TargetLabel::read(path)?;
        let lock = lock(path, note_pid)?;
        Ok(TargetDir {
            path: path.into(),
            label,
            _lock: lock,
        })
    }

    /// Checks that the stores are there, if the target has run before: a disk that is not mounted leaves an empty
    /// directory, which is not the target's.
    pub fn check_stores(&self) -> Result<(), TargetError> {
        let lost = |store: &str, why: String| TargetError::Lost {
            path: self.path.join(store),
            svname: self.label.svname(),
            why,
        };
        if !self.label.initialised {
            return Ok(());
        }
        if !self.path.join(INDEX).is_dir() {
            return Err(lost(INDEX, "there is no such directory".into()));
        }
        if self.label.kind != TargetKind::Ost {
            return Ok(());
        }
        let mark = self.path.join(OBJECTS).join(OBJECTS_MARK);
        match fs::read_to_string(&mark) {
            Ok(uuid) if uuid.trim() == self.label.uuid => Ok(()),
            Ok(uuid) => {
                let why = format!(
                    "it belongs to another target ({OBJECTS_MARK} says '{}')",
                    uuid.trim()
                );
                Err(lost(OBJECTS, why))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Err(lost(OBJECTS, format!("the file '{OBJECTS_MARK}' is not in it")))
            }
            Err(source) => Err(TargetError::Io { path: mark, source }),
        }
    }

    /// Raises the format of an older store to what this version writes.
    pub fn raise_format(&mut self) -> Result<(), TargetError> {
        match self.label.format_version < FORMAT_VERSION {
            true => self.rewrite(TargetLabel {
                format_version: FORMAT_VERSION,
                ..self.label.clone()
            }),
            false => Ok(()),
        }
    }

    /// Notes that the target has run: from now on its stores have to be there.
    pub fn set_initialised(&mut self) -> Result<(), TargetError> {
        if self.label.initialised {
            return Ok(());
        }
        if self.label.kind == TargetKind::Ost {
            let mark = self.path.join(OBJECTS).join(OBJECTS_MARK);
            files::replace(&mark, self.label.uuid.as_bytes(), files::FILE_MODE)
                .map_err(|source| TargetError::Io { path: mark, source })?;
        }
        self.rewrite(TargetLabel {
            initialised: true,
            ..self.label.clone()
        })
    }

    fn rewrite(&mut self, label: TargetLabel) -> Result<(), TargetError> {
        let path = self.path.join(LABEL);
        files::replace(&path, label.to_text().as_bytes(), files::FILE_MODE)
            .map_err(|source| TargetError::Io { path, source })?;
        self.label = label;
        Ok(())
    }

    /// Takes the permissions of other users from what is in the directory, if they have any; how many files and
    /// directories that were. Files of objects are not visited, since there can be millions: the directories above them
    /// are, and nobody gets past a directory of mode 0700.
    pub fn restrict(&self) -> Result<u64, TargetError> {
        let restrict = || -> io::Result<u64> {
            let mut changed = u64::from(files::restrict(&self.path)?);
            changed += files::restrict_below(&self.path, 0, true)?;
            for (dir, depth, with_files) in [(INDEX, usize::MAX, true), (OBJECTS, 2, false)] {
                let dir = self.path.join(dir);
                changed += u64::from(files::restrict(&dir)?);
                changed += files::restrict_below(&dir, depth, with_files)?;
            }
            changed += u64::from(files::restrict(&self.path.join(OBJECTS).join(OBJECTS_MARK))?);
            Ok(changed)
        };
        restrict().map_err(|source| TargetError::Io {
            path: self.path.clone(),
            source,
        })
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it is.
    pub fn label(&self) -> &TargetLabel {
        &self.label
    }
}

/// Takes the directory's lock. With `note_pid` writes this process's number into it, for whoever finds it taken; without,
/// changes nothing.
pub(crate) fn lock(dir: &Path, note_pid: bool) -> Result<fs::File, TargetError> {
    let path = dir.join(LOCK);
    let io = |source| TargetError::Io {
        path: path.clone(),
        source,
    };
    let mut file = files::options()
        .create(note_pid)
        .truncate(false)
        .read(true)
        .write(note_pid)
        .open(&path)
        .map_err(io)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let by = fs::read_to_string(&path)
                .ok()
                .map(|s| s.trim().to_owned())
                .filter(|s| !s.is_empty());
            return Err(TargetError::InUse { path: dir.into(), by });
        }
        Err(e) => return Err(io(e.into())),
    }
    if !note_pid {
        return Ok(file);
    }
    file.set_len(0)
        .and_then(|()| writeln!(file, "pid {}", std::process::id()))
        .map_err(io)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn label() -> TargetLabel {
        let mut l = TargetLabel::new(TargetKind::Ost, "testfs", 10, "0123abcd");
        l.mgsnode = vec!["10.0.0.1@tcp".parse().unwrap(), "10.0.0.2@tcp3".parse().unwrap()];
        l.params = vec![("ost.brw_size".into(), "4".into())];
        l
    }

    fn no_fill(_: &Path) -> io::Result<()> {
        Ok(())
    }

    #[test]
    fn a_label_is_read_back_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/ost");
        drop(TargetDir::create(&path, &label(), no_fill).unwrap());
        let t = TargetDir::open(&path).unwrap();
        assert_eq!(t.label(), &label());
        assert_eq!(t.label().svname(), "testfs-OST000a");
    }

    #[test]
    fn stores_of_a_target_that_has_run_must_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let mut made = TargetDir::create(&path, &label(), no_fill).unwrap();
        // Before the first run there are none.
        made.check_stores().unwrap();
        fs::create_dir(path.join(INDEX)).unwrap();
        fs::create_dir(path.join(OBJECTS)).unwrap();
        made.set_initialised().unwrap();
        drop(made);
        let why = || match TargetDir::open(&path).unwrap().check_stores() {
            Err(TargetError::Lost { path, why, .. }) => {
                format!("{} {why}", path.file_name().unwrap().display())
            }
            other => format!("{other:?}"),
        };
        assert_eq!(why(), "Ok(())");
        let mark = path.join(OBJECTS).join(OBJECTS_MARK);
        fs::write(&mark, "another").unwrap();
        assert!(why().contains("belongs to another target"), "{}", why());
        fs::remove_file(&mark).unwrap();
        assert!(why().contains("'uuid' is not in it"), "{}", why());
        fs::remove_dir(path.join(OBJECTS)).unwrap();
        assert!(why().contains("objects the file"), "{}", why());
        fs::remove_dir(path.join(INDEX)).unwrap();
        assert!(why().contains("index there is no such directory"), "{}", why());
    }

    #[test]
    fn a_store_of_an_earlier_format_is_raised_and_looking_at_it_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        drop(TargetDir::create(&path, &label(), no_fill).unwrap());
        let old = label()
            .to_text()
            .replace("format_version = 2", "format_version = 1");
        let old = old.replace("initialised = false\n", "");
        fs::write(path.join(LABEL), &old).unwrap();
        fs::write(path.join(LOCK), "pid 1\n").unwrap();
        let looked = TargetDir::open_unchanged(&path).unwrap();
        assert!(!looked.label().initialised);
        assert!(matches!(TargetDir::open(&path), Err(TargetError::InUse { .. })));
        drop(looked);
        assert_eq!(fs::read_to_string(path.join(LABEL)).unwrap(), old);
        assert_eq!(fs::read_to_string(path.join(LOCK)).unwrap(), "pid 1\n");
        TargetDir::open(&path).unwrap().raise_format().unwrap();
        assert_eq!(TargetLabel::read(&path).unwrap(), label());
    }

    #[test]
    fn a_target_is_opened_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let first = TargetDir::create(&path, &label(), no_fill).unwrap();
        let e = TargetDir::open(&path).unwrap_err();
        assert!(
            matches!(&e, TargetError::InUse { by: Some(p), .. } if p.starts_with("pid ")),
            "{e}"
        );
        drop(first);
        TargetDir::open(&path).unwrap();
    }

    #[test]
    fn a_half_made_target_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        TargetDir::create(&path, &label(), |_| Err(io::Error::other("killed"))).unwrap_err();
        assert!(matches!(TargetDir::open(&path), Err(TargetError::HalfMade(_))));
        assert!(matches!(
            TargetDir::create(&path, &label(), no_fill),
            Err(TargetError::HalfMade(_))
        ));
    }

    #[test]
    fn other_directories_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(
            TargetDir::open(&dir.path().join("none")),
            Err(TargetError::NoDirectory(_))
        ));
        assert!(matches!(
            TargetDir::open(dir.path()),
            Err(TargetError::NotATarget(_))
        ));
        fs::write(dir.path().join("photo.jpg"), b"x").unwrap();
        let e = TargetDir::create(dir.path(), &label(), no_fill).unwrap_err();
        assert!(
            matches!(&e, TargetError::WrongDirectory { found, .. } if found == "photo.jpg"),
            "{e}"
        );
    }

    #[test]
    fn a_newer_format_and_a_bad_label_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        drop(TargetDir::create(&path, &label(), no_fill).unwrap());
        let newer = label()
            .to_text()
            .replace("format_version = 2", "format_version = 7\nlater = thing");
        fs::write(path.join("target"), newer).unwrap();
        assert!(matches!(
            TargetDir::open(&path),
            Err(TargetError::NewerFormat { found: 7, .. })
        ));
        for bad in [
            "",
            "kind = ost",
            "format_version = 1",
            "format_version = 1\nkind = x",
            "format_version",
        ] {
            fs::write(path.join("target"), bad).unwrap();
            assert!(
                matches!(TargetDir::open(&path), Err(TargetError::BadLabel { .. })),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_target_is_not_made_over_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        drop(TargetDir::create(&path, &label(), no_fill).unwrap());
        let e = TargetDir::create(&path, &label(), no_fill).unwrap_err();
        assert!(
            matches!(&e, TargetError::Exists { svname, .. } if svname == "testfs-OST000a"),
            "{e}"
        );
    }
}
