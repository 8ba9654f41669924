//! The directory of a target: the files that `mkfs` writes, and the lock that lets only one process
//! open it.
//!
//! `target` is a small text file with one `name = value` per line, `target.copy` its copy with a
//! checksum. `mkfs` writes `target` last, so a directory with `target.new` but without `target` is
//! the result of an interrupted `mkfs`. The server locks the file `lock` with flock: the kernel
//! releases the lock even if the process is killed. A target with several service nodes has a
//! [`generation`], so that another server can take it over from one that does not answer.
//! `docs/on-disk-format.md` describes the format.

mod error;
mod generation;
mod label;
mod lock;
mod stored_label;

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use wire::Nid;

use crate::files;

use lock::lock_file;
use stored_label::StoredLabel;

pub use error::TargetError;
pub use generation::Fence;
pub(crate) use generation::{
    GENERATION, all_paths as generation_paths, incomplete_index, index_dir, name_in,
};
pub use label::{FORMAT_VERSION, TargetKind, TargetLabel};
pub use lock::TargetServer;
pub(crate) use lock::lock;

/// The label's file name.
pub(crate) const LABEL: &str = "target";
/// The file name of the label's copy.
pub(crate) const LABEL_COPY: &str = "target.copy";
/// The file name of a damaged label after its repair.
pub(crate) const LABEL_DAMAGED: &str = "target.damaged";
/// The label's file name during `mkfs`.
pub(crate) const LABEL_NEW: &str = "target.new";
/// The label's file name during a destroy.
pub(crate) const LABEL_DESTROYED: &str = "target.destroyed";
/// The file that a process locks while it uses the target.
pub(crate) const LOCK: &str = "lock";
/// The index's directory, in a target's directory.
pub(crate) const INDEX: &str = "index";
/// The objects' directory, in an OST's directory.
pub const OBJECTS: &str = "objects";
/// A file in the directory of objects: the uuid of its target.
pub(crate) const OBJECTS_MARK: &str = "uuid";

/// A target's locked directory: no other process can open it while this value lives.
#[derive(Debug)]
pub struct TargetDir {
    path: PathBuf,
    label: TargetLabel,
    fence: Fence,
    lock: fs::File,
}

impl TargetDir {
    /// Creates a target in `path`, which must be missing or empty. `fill` writes the target's
    /// initial files; the directory becomes a target only after `fill` has succeeded.
    ///
    /// # Errors
    ///
    /// [`TargetError::Exists`] or [`TargetError::WrongDirectory`] if the directory is not empty,
    /// [`TargetError::IncompleteMkfs`] or [`TargetError::IncompleteDestroy`] after an interruption,
    /// [`TargetError::Io`] if a file cannot be written.
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
            Ok(existing) => {
                return Err(TargetError::Exists {
                    path: path.into(),
                    svname: existing.svname(),
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
        // Until the rename the directory counts as incomplete.
        let new = path.join(LABEL_NEW);
        let mut file = files::options()
            .write(true)
            .create_new(true)
            .open(&new)
            .map_err(io(&new))?;
        let (lock, _) = lock::lock(path, true)?;
        files::restrict(path).map_err(io(path))?;
        file.write_all(label.to_text().as_bytes()).map_err(io(&new))?;
        fill(path).map_err(io(path))?;
        stored_label::write_copy(path, label)?;
        let shared = label.has_several_nodes();
        if shared {
            generation::write(path, 0)?;
        }
        file.sync_all().map_err(io(&new))?;
        fs::rename(&new, path.join(LABEL)).map_err(io(&new))?;
        files::sync_dir(path).map_err(io(path))?;
        let parent = files::parent(path);
        files::sync_dir(&parent).map_err(io(&parent))?;
        Ok(TargetDir {
            path: path.into(),
            label: label.clone(),
            fence: Fence::new(path, 0, shared),
            lock,
        })
    }

    /// Opens and locks a target.
    ///
    /// # Errors
    ///
    /// [`TargetError::InUse`] if another process holds the lock, or an error of
    /// [`TargetLabel::read`].
    pub fn open(path: &Path) -> Result<TargetDir, TargetError> {
        TargetDir::open_locked(path, true)
    }

    /// Opens and locks a target for reading: nothing in the directory changes.
    ///
    /// # Errors
    ///
    /// The errors of [`TargetDir::open`].
    pub fn open_read_only(path: &Path) -> Result<TargetDir, TargetError> {
        TargetDir::open_locked(path, false)
    }

    fn open_locked(path: &Path, may_write: bool) -> Result<TargetDir, TargetError> {
        // Before the lock: only a target's directory gets a lock file.
        let stored = StoredLabel::read(path)?;
        let (lock, generation) = lock::lock(path, may_write)?;
        if may_write {
            return TargetDir::locked(path, lock, generation);
        }
        Ok(TargetDir {
            path: path.into(),
            label: stored.label,
            fence: Fence::new(path, generation, generation::is_shared(path)?),
            lock,
        })
    }

    /// A target that this process has locked for writing.
    fn locked(path: &Path, lock: fs::File, generation: u32) -> Result<TargetDir, TargetError> {
        // The former owner of the lock may have changed the label.
        let stored = StoredLabel::read(path)?;
        stored.repair(path)?;
        let mut shared = generation::is_shared(path)?;
        if !shared && stored.label.has_several_nodes() {
            generation::write(path, generation)?;
            shared = true;
        }
        Ok(TargetDir {
            path: path.into(),
            label: stored.label,
            fence: Fence::new(path, generation, shared),
            lock,
        })
    }

    /// Opens and locks a target even if `old`, its server, holds its lock: begins a new generation,
    /// so that nothing counts that the old server writes from now on. If the lock is free, opens
    /// the target as [`TargetDir::open`] does.
    ///
    /// # Errors
    ///
    /// [`TargetError::NotShared`] if the target's last server ran without several service nodes;
    /// [`TargetError::InUse`] if the target has another server than `old` meanwhile, or another
    /// process is taking it over; an error of [`TargetDir::open`].
    pub fn take_over(path: &Path, old: &TargetServer) -> Result<TargetDir, TargetError> {
        match TargetDir::open(path) {
            Err(TargetError::InUse { .. }) => {}
            opened => return opened,
        }
        if !generation::is_shared(path)? {
            return Err(TargetError::NotShared(path.into()));
        }
        let check_server = || match TargetServer::of(path)? {
            found if found == *old => Ok(()),
            found => Err(found.in_use(path)),
        };
        check_server()?;
        let number = old.generation + 1;
        let lock = lock_file(path, &generation::name_in(LOCK, number), true)?;
        // Another server may have begun and ended this generation meanwhile.
        check_server()?;
        generation::write(path, number)?;
        TargetDir::locked(path, lock, number)
    }

    /// Fails if [`TargetDir::take_over`] could not open the target. Begins no generation.
    ///
    /// # Errors
    ///
    /// [`TargetError::NotShared`], or an error of [`TargetDir::open`].
    pub fn check_take_over(path: &Path) -> Result<(), TargetError> {
        match TargetDir::open(path) {
            Err(TargetError::InUse { .. }) if generation::is_shared(path)? => Ok(()),
            Err(TargetError::InUse { .. }) => Err(TargetError::NotShared(path.into())),
            opened => opened.map(drop),
        }
    }

    /// Records the NIDs of this process's node, at which a standby server looks for this server.
    ///
    /// # Errors
    ///
    /// [`TargetError::Io`] if the lock file cannot be written.
    pub fn record_nids(&self, nids: &[Nid]) -> Result<(), TargetError> {
        let path = || self.path.join(generation::name_in(LOCK, self.fence.generation()));
        lock::write_nids(&self.lock, nids).map_err(|source| TargetError::Io { path: path(), source })
    }

    /// Checks that the stores of a target that ran before exist: an unmounted disk leaves an empty
    /// directory.
    ///
    /// # Errors
    ///
    /// [`TargetError::MissingStore`] if a store is missing or belongs to another target.
    pub fn check_stores(&self) -> Result<(), TargetError> {
        let missing = |store: &str, why: String| TargetError::MissingStore {
            path: self.path.join(store),
            svname: self.label.svname(),
            why,
        };
        if !self.label.initialised {
            return Ok(());
        }
        if !self.has_index() {
            return Err(missing(INDEX, "no such directory".into()));
        }
        if self.label.kind != TargetKind::Ost {
            return Ok(());
        }
        let mark = self.path.join(OBJECTS).join(OBJECTS_MARK);
        match fs::read_to_string(&mark) {
            Ok(uuid) if uuid.trim() == self.label.uuid => Ok(()),
            Ok(uuid) => {
                let why = format!(
                    "it belongs to another target (its '{OBJECTS_MARK}' is '{}')",
                    uuid.trim()
                );
                Err(missing(OBJECTS, why))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Err(missing(OBJECTS, format!("it lacks the file '{OBJECTS_MARK}'")))
            }
            Err(source) => Err(TargetError::Io { path: mark, source }),
        }
    }

    /// Upgrades the label of an older target to [`FORMAT_VERSION`].
    ///
    /// # Errors
    ///
    /// [`TargetError::Io`] if the label cannot be written.
    pub fn raise_format(&mut self) -> Result<(), TargetError> {
        match self.label.format_version < FORMAT_VERSION {
            true => self.rewrite(TargetLabel {
                format_version: FORMAT_VERSION,
                ..self.label.clone()
            }),
            false => Ok(()),
        }
    }

    fn rewrite(&mut self, label: TargetLabel) -> Result<(), TargetError> {
        stored_label::write(&self.path, &label)?;
        self.label = label;
        Ok(())
    }

    /// Removes the permissions of other users from the directory's contents; returns the number of
    /// changed files and directories. Files of objects are skipped, since there can be millions:
    /// their directories have mode 0700, which blocks access.
    ///
    /// # Errors
    ///
    /// [`TargetError::Io`] if a mode cannot be read or changed.
    pub fn restrict(&self) -> Result<u64, TargetError> {
        let restrict = || -> io::Result<u64> {
            let mut changed = u64::from(files::restrict(&self.path)?);
            changed += files::restrict_below(&self.path, 0, true)?;
            let dirs = [
                (index_dir(&self.path), usize::MAX, true),
                (self.path.join(OBJECTS), 2, false),
            ];
            for (dir, depth, with_files) in dirs {
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

    /// The directory's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The target's label.
    pub fn label(&self) -> &TargetLabel {
        &self.label
    }

    /// Whether the target has an index: without one it never ran.
    pub fn has_index(&self) -> bool {
        index_dir(&self.path).is_dir()
    }

    /// The generation in which this process opened the target.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }
}

/// Records that the target in this directory ran: from now on its stores must exist.
pub(crate) fn set_initialised(dir: &Path) -> Result<(), TargetError> {
    let label = TargetLabel::read(dir)?;
    if label.initialised {
        return Ok(());
    }
    if label.kind == TargetKind::Ost {
        let mark = dir.join(OBJECTS).join(OBJECTS_MARK);
        files::replace(&mark, label.uuid.as_bytes(), files::FILE_MODE)
            .map_err(|source| TargetError::Io { path: mark, source })?;
    }
    let label = TargetLabel {
        initialised: true,
        ..label
    };
    stored_label::write(dir, &label)
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
    fn label_round_trips() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/ost");
        drop(TargetDir::create(&path, &label(), no_fill).unwrap());
        let t = TargetDir::open(&path).unwrap();
        assert_eq!(t.label(), &label());
        assert_eq!(t.label().svname(), "testfs-OST000a");
    }

    #[test]
    fn check_stores_fails_if_a_store_of_a_target_that_ran_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let target = TargetDir::create(&path, &label(), no_fill).unwrap();
        // A target that never ran has no stores.
        target.check_stores().unwrap();
        fs::create_dir(path.join(INDEX)).unwrap();
        fs::create_dir(path.join(OBJECTS)).unwrap();
        set_initialised(&path).unwrap();
        drop(target);
        let why = || match TargetDir::open(&path).unwrap().check_stores() {
            Err(TargetError::MissingStore { path, why, .. }) => {
                format!("{} {why}", path.file_name().unwrap().display())
            }
            other => format!("{other:?}"),
        };
        assert_eq!(why(), "Ok(())");
        let mark = path.join(OBJECTS).join(OBJECTS_MARK);
        fs::write(&mark, "another").unwrap();
        assert!(why().contains("belongs to another target"), "{}", why());
        fs::remove_file(&mark).unwrap();
        assert!(why().contains("lacks the file 'uuid'"), "{}", why());
        fs::remove_dir(path.join(OBJECTS)).unwrap();
        assert!(why().contains("objects it lacks"), "{}", why());
        fs::remove_dir(path.join(INDEX)).unwrap();
        assert!(why().contains("index no such directory"), "{}", why());
    }

    #[test]
    fn older_format_is_upgraded_and_a_read_only_open_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        drop(TargetDir::create(&path, &label(), no_fill).unwrap());
        let old = label()
            .to_text()
            .replace("format_version = 3", "format_version = 1");
        let old = old.replace("initialised = false\n", "");
        fs::write(path.join(LABEL), &old).unwrap();
        fs::remove_file(path.join(LABEL_COPY)).unwrap();
        fs::write(path.join(LOCK), "pid 1\n").unwrap();
        let read_only = TargetDir::open_read_only(&path).unwrap();
        assert!(!read_only.label().initialised);
        assert!(matches!(TargetDir::open(&path), Err(TargetError::InUse { .. })));
        drop(read_only);
        assert_eq!(fs::read_to_string(path.join(LABEL)).unwrap(), old);
        assert_eq!(fs::read_to_string(path.join(LOCK)).unwrap(), "pid 1\n");
        TargetDir::open(&path).unwrap().raise_format().unwrap();
        assert_eq!(TargetLabel::read(&path).unwrap(), label());
    }

    #[test]
    fn locked_target_cannot_be_opened_again() {
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
    fn interrupted_mkfs_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        TargetDir::create(&path, &label(), |_| Err(io::Error::other("killed"))).unwrap_err();
        assert!(matches!(
            TargetDir::open(&path),
            Err(TargetError::IncompleteMkfs(_))
        ));
        assert!(matches!(
            TargetDir::create(&path, &label(), no_fill),
            Err(TargetError::IncompleteMkfs(_))
        ));
    }

    #[test]
    fn directories_without_a_target_are_errors() {
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
    fn newer_format_and_bad_labels_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        drop(TargetDir::create(&path, &label(), no_fill).unwrap());
        let newer = label()
            .to_text()
            .replace("format_version = 3", "format_version = 7\nlater = thing");
        fs::write(path.join("target"), newer).unwrap();
        assert!(matches!(
            TargetDir::open(&path),
            Err(TargetError::NewerFormat { found: 7, .. })
        ));
        fs::remove_file(path.join(LABEL_COPY)).unwrap();
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
    fn mkfs_does_not_overwrite_a_target() {
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
