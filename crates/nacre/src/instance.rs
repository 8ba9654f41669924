//! The description of a file system that `nacre up` keeps in its directory: name, store, numbers
//! of MDTs and OSTs, last address, start parameters.
//!
//! `nacre up` writes `instance.new` into a new directory first and `instance.json` last, so a
//! directory with only `instance.new` is incomplete. Each target has its own directory: `mgs`,
//! `mdt0000`, `ost0000` and so on.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use osd::target::{TargetDir, TargetKind};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use wire::Nid;

use crate::cmd::mkfs;
use crate::output::shell_word;
use crate::process::{RECORD_IN_DIR, SOCKET_IN_DIR, write_atomically};

/// The newest format that this version reads and writes: a file system with several MDTs.
const FORMAT_VERSION: u32 = 2;
/// The format of a file system with one MDT, which older versions read, too.
const FORMAT_ONE_MDT: u32 = 1;
/// Name of the description's file.
const INSTANCE_FILE: &str = "instance.json";
/// Name of the description's file until all targets exist.
const INCOMPLETE_FILE: &str = "instance.new";
/// Name of [`INSTANCE_FILE`] while `nacre destroy` deletes the rest.
const DESTROYED_FILE: &str = "instance.destroyed";
/// Name of the file that [`lock`] locks.
const LOCK_FILE: &str = "nacre.lock";

/// Where a file system stores its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Store {
    /// On disk, in the directory
    Local,
    /// In memory: gone after `down`
    Memory,
}

/// A complete file system in one directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Instance {
    format_version: u32,
    /// Name of the file system.
    pub(crate) fsname: String,
    /// Where the file system stores its data.
    pub(crate) store: Store,
    /// Number of metadata targets.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(crate) mdts: u32,
    /// Number of object targets.
    pub(crate) osts: u32,
    /// First NID of the process at the last start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nid: Option<String>,
    /// Start parameters, `NAME=VALUE`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) start: Vec<String>,
}

fn one() -> u32 {
    1
}

fn is_one(count: &u32) -> bool {
    *count == 1
}

/// Values from the command line; `None` keeps the value of an existing file system, or takes the
/// default for a new one.
pub(crate) struct InstanceOptions<'a> {
    pub(crate) fsname: Option<&'a str>,
    pub(crate) store: Option<Store>,
    pub(crate) mdts: Option<u32>,
    pub(crate) osts: Option<u32>,
}

/// An exclusive lock on the directory; dropping it unlocks.
pub(crate) struct Lock(#[expect(dead_code, reason = "held for its lock, never read")] fs::File);

/// The state of a directory.
enum DirState {
    /// The directory is missing, or has only files that Nacre creates before the description.
    Empty,
    Instance(Instance),
}

impl Instance {
    /// The instance that this directory will have after applying `options`. Changes nothing.
    ///
    /// # Errors
    /// The directory cannot hold an instance, or the present instance cannot be changed in this
    /// way.
    pub(crate) fn plan(dir: &Path, options: &InstanceOptions) -> Result<Instance> {
        let here = dir.display();
        match inspect(dir)? {
            DirState::Empty => {
                let fsname = options.fsname.unwrap_or("nacre");
                mkfs::check_fsname(fsname)?;
                Ok(Instance {
                    format_version: FORMAT_ONE_MDT,
                    fsname: fsname.to_owned(),
                    store: options.store.unwrap_or(Store::Local),
                    mdts: 1,
                    osts: options.osts.unwrap_or(1),
                    nid: None,
                    start: Vec::new(),
                }
                .with_mdts(options.mdts.unwrap_or(1)))
            }
            DirState::Instance(instance) => {
                if options.fsname.is_some_and(|name| name != instance.fsname) {
                    bail!(
                        "the file system in {here} is named '{}': leave out --fsname",
                        instance.fsname
                    );
                }
                if options.store.is_some_and(|store| store != instance.store) {
                    bail!(
                        "the file system in {here} has another kind of store: leave out --store, or use another --dir"
                    );
                }
                let osts = options.osts.unwrap_or(instance.osts);
                if osts < instance.osts {
                    bail!(
                        "the file system in {here} has {} OSTs, and an OST cannot be removed",
                        instance.osts
                    );
                }
                let mdts = options.mdts.unwrap_or(instance.mdts);
                if mdts < instance.mdts {
                    bail!(
                        "the file system in {here} has {} MDTs, and an MDT cannot be removed",
                        instance.mdts
                    );
                }
                Ok(Instance { osts, ..instance }.with_mdts(mdts))
            }
        }
    }

    /// The instance in this directory, if there is one; none after `nacre destroy` has marked it as
    /// destroyed. Fails if the instance is incomplete.
    pub(crate) fn find(dir: &Path) -> Result<Option<Instance>> {
        if !dir.join(INSTANCE_FILE).exists() && !dir.join(INCOMPLETE_FILE).exists() {
            return Ok(None);
        }
        match inspect(dir)? {
            DirState::Instance(instance) => Ok(Some(instance)),
            DirState::Empty => Ok(None),
        }
    }

    /// Whether `nacre up` created this directory, even if it is incomplete or half destroyed.
    pub(crate) fn exists_in(dir: &Path) -> bool {
        let names = [INSTANCE_FILE, INCOMPLETE_FILE, DESTROYED_FILE];
        names.iter().any(|name| dir.join(name).is_file())
    }

    /// Marks the instance as destroyed: it cannot start any more.
    pub(crate) fn mark_destroyed(dir: &Path) -> Result<()> {
        match fs::rename(dir.join(INSTANCE_FILE), dir.join(DESTROYED_FILE)) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(e).with_context(|| format!("cannot rename {}", dir.join(INSTANCE_FILE).display()))
            }
            _ => Ok(()),
        }
    }

    /// Removes the last files of the instance, the mark at the end.
    pub(crate) fn remove_destroyed_mark(dir: &Path) -> Result<()> {
        for name in [INCOMPLETE_FILE, ".instance.json.new", DESTROYED_FILE] {
            match fs::remove_file(dir.join(name)) {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    return Err(e).with_context(|| format!("cannot remove {}", dir.join(name).display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// First NID of the process at the last start.
    pub(crate) fn last_nid(&self) -> Option<Nid> {
        self.nid.as_deref()?.parse().ok()
    }

    /// The same instance with this number of MDTs. Its format is the oldest that can describe it.
    fn with_mdts(self, mdts: u32) -> Instance {
        let format_version = match mdts {
            1 => FORMAT_ONE_MDT,
            _ => FORMAT_VERSION,
        };
        Instance {
            format_version,
            mdts,
            ..self
        }
    }

    /// The same instance at this NID.
    pub(crate) fn with_nid(self, nid: Nid) -> Instance {
        Instance {
            nid: Some(nid.to_string()),
            ..self
        }
    }

    /// The same instance with these start parameters.
    pub(crate) fn with_start_params(self, start: Vec<String>) -> Instance {
        Instance { start, ..self }
    }

    /// Creates the missing targets and writes the description. Returns the directories of all
    /// targets: MGS, MDTs, then OSTs.
    pub(crate) fn create_missing(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        let text =
            serde_json::to_string_pretty(self).context("cannot encode the description of the file system")?;
        let is_new = !dir.join(INSTANCE_FILE).exists();
        // Targets that existed at the last start must still exist: an empty target must not replace
        // one with data.
        let existing_dirs = match inspect(dir)? {
            DirState::Instance(before) if before.store == Store::Local => before.target_dirs(dir),
            _ => Vec::new(),
        };
        for path in existing_dirs {
            if !TargetDir::is_target(&path) {
                bail!(
                    "{} is missing or empty, although the file system has run with it. Is its disk mounted? Nothing was \
                     changed; mount the disk, or restore the target from a backup",
                    path.display()
                );
            }
        }
        if is_new {
            let incomplete_file = dir.join(INCOMPLETE_FILE);
            fs::write(&incomplete_file, &text)
                .with_context(|| format!("cannot write {}", incomplete_file.display()))?;
        }
        let dirs = self.target_dirs(dir);
        if self.store == Store::Local {
            for (path, (kind, index)) in dirs.iter().zip(self.targets()) {
                if !path.exists() {
                    TargetDir::create(path, &mkfs::new_label(kind, &self.fsname, index)?, |_| Ok(()))?;
                }
            }
        }
        write_atomically(&dir.join(INSTANCE_FILE), &text)?;
        if is_new {
            let _ = fs::remove_file(dir.join(INCOMPLETE_FILE));
        }
        Ok(dirs)
    }

    /// Kind and index of each target.
    pub(crate) fn targets(&self) -> Vec<(TargetKind, u32)> {
        let mdts = (0..self.mdts).map(|i| (TargetKind::Mdt, i));
        let osts = (0..self.osts).map(|i| (TargetKind::Ost, i));
        std::iter::once((TargetKind::Mgs, 0))
            .chain(mdts)
            .chain(osts)
            .collect()
    }

    /// The directories of all targets: MGS, MDTs, then OSTs.
    pub(crate) fn target_dirs(&self, dir: &Path) -> Vec<PathBuf> {
        let name = |(kind, index): (TargetKind, u32)| match kind {
            TargetKind::Mgs => dir.join("mgs"),
            kind => dir.join(format!("{kind}{index:04x}")),
        };
        self.targets().into_iter().map(name).collect()
    }
}

/// Removes other users' permissions from the description, lock, log and record in the directory.
/// The directory's own mode stays, since the mount point may be in the directory.
pub(crate) fn restrict(dir: &Path) -> Result<()> {
    let mut changed = 0;
    for name in [INSTANCE_FILE, LOCK_FILE, "nacre.log", RECORD_IN_DIR] {
        let path = dir.join(name);
        let restricted = osd::files::restrict(&path);
        changed +=
            u64::from(restricted.with_context(|| format!("cannot change the mode of {}", path.display()))?);
    }
    warn_restricted(dir, changed);
    Ok(())
}

/// Logs that files were accessible to other users until now.
pub(crate) fn warn_restricted(dir: &Path, changed: u64) {
    if changed > 0 {
        tracing::warn!(
            "{}: {changed} files and directories were accessible to other users; their modes are now 0600 (files) or 0700 (directories)",
            dir.display()
        );
    }
}

/// Locks the directory for this process. Fails if another process has the lock.
pub(crate) fn lock(dir: &Path) -> Result<Lock> {
    let path = dir.join(LOCK_FILE);
    let mut options = osd::files::options();
    let file = options.write(true).create(true).truncate(false).open(&path);
    // `nacre fsck` on a read-only file system can still lock a file or directory open for reading.
    let file = file.or_else(|e| match e.kind() {
        ErrorKind::ReadOnlyFilesystem => fs::File::open(&path).or_else(|_| fs::File::open(dir)),
        _ => Err(e),
    });
    let file = file.with_context(|| format!("cannot write {}", path.display()))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        bail!(
            "{} is locked by another nacre process that serves, starts, stops or checks it: try again",
            dir.display()
        );
    }
    Ok(Lock(file))
}

/// The state of a directory. Fails if the directory is incomplete, half destroyed, or contains
/// files that Nacre did not create.
fn inspect(dir: &Path) -> Result<DirState> {
    let here = dir.display();
    let names = match fs::read_dir(dir) {
        Ok(entries) => entries
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into_owned()),
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(DirState::Empty),
        Err(e) if e.kind() == ErrorKind::NotADirectory => {
            bail!("{here} is not a directory: choose another with --dir")
        }
        Err(e) => return Err(e).with_context(|| format!("cannot read {here}")),
    };
    let names: Vec<String> = names.collect();
    if names.iter().any(|n| n == DESTROYED_FILE) {
        bail!(
            "{here} is half deleted (`nacre destroy` was interrupted): run `nacre destroy {}` again",
            shell_word(dir)
        );
    }
    if !names.iter().any(|n| n == INSTANCE_FILE) {
        if names.iter().any(|n| n == INCOMPLETE_FILE) {
            // Fails while another process creates the file system.
            drop(lock(dir)?);
            bail!(
                "{here} is incomplete (`nacre up` was interrupted; no data is in it yet): remove it and try again"
            );
        }
        let expected = [
            LOCK_FILE,
            "nacre.log",
            "mnt",
            RECORD_IN_DIR,
            SOCKET_IN_DIR,
            ".run.json.new",
        ];
        return match names.iter().find(|n| !expected.contains(&n.as_str())) {
            None => Ok(DirState::Empty),
            Some(_) if TargetDir::is_target(dir) => bail!(
                "{here} is a target of `nacre mkfs`: start it with `nacre serve {}`",
                shell_word(dir)
            ),
            Some(other) => bail!(
                "{here} is not a Nacre file system and not empty ('{other}' is in it): choose an empty or new directory with --dir"
            ),
        };
    }
    let path = dir.join(INSTANCE_FILE);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    // Check the version first: a newer description may have unknown fields.
    let value: serde_json::Value =
        serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))?;
    if let Some(version) = value["format_version"]
        .as_u64()
        .filter(|v| *v > FORMAT_VERSION.into())
    {
        bail!(
            "{here} was created by a newer Nacre (format {version}, this version knows up to {FORMAT_VERSION}): use that version or a newer one"
        );
    }
    let instance = serde_json::from_value(value).with_context(|| format!("{} is damaged", path.display()))?;
    Ok(DirState::Instance(instance))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const NO_OPTIONS: InstanceOptions = InstanceOptions {
        fsname: None,
        store: None,
        mdts: None,
        osts: None,
    };

    fn plan_error(dir: &Path, options: &InstanceOptions) -> String {
        Instance::plan(dir, options).unwrap_err().to_string()
    }

    #[test]
    fn existing_instance_can_only_grow() {
        let dir = tempfile::tempdir().unwrap();
        let two = InstanceOptions {
            osts: Some(2),
            ..NO_OPTIONS
        };
        let created = Instance::plan(dir.path(), &two).unwrap();
        assert_eq!(created.create_missing(dir.path()).unwrap().len(), 4);
        assert_eq!(Instance::plan(dir.path(), &NO_OPTIONS).unwrap(), created);
        let three = Instance::plan(
            dir.path(),
            &InstanceOptions {
                osts: Some(3),
                ..NO_OPTIONS
            },
        )
        .unwrap();
        let dirs = three.create_missing(dir.path()).unwrap();
        let text = fs::read_to_string(dir.path().join(INSTANCE_FILE)).unwrap();
        assert!(
            text.contains("\"format_version\": 1") && !text.contains("mdts"),
            "{text}"
        );
        assert!(dirs[4].ends_with("ost0002") && dirs[4].is_dir());
        assert!(plan_error(dir.path(), &two).contains("3 OSTs"));
        assert!(
            plan_error(
                dir.path(),
                &InstanceOptions {
                    fsname: Some("other"),
                    ..NO_OPTIONS
                }
            )
            .contains("'nacre'")
        );
        assert!(
            plan_error(
                dir.path(),
                &InstanceOptions {
                    store: Some(Store::Memory),
                    ..NO_OPTIONS
                }
            )
            .contains("--store")
        );
    }

    #[test]
    fn mdts_can_be_added_and_older_versions_do_not_start_without_them() {
        let dir = tempfile::tempdir().unwrap();
        let with_mdts = |mdts| InstanceOptions {
            mdts: Some(mdts),
            ..NO_OPTIONS
        };
        for (mdts, dirs) in [(1, 3), (3, 5)] {
            let planned = Instance::plan(dir.path(), &with_mdts(mdts)).unwrap();
            assert_eq!(planned.create_missing(dir.path()).unwrap().len(), dirs);
        }
        assert!(TargetDir::is_target(&dir.path().join("mdt0002")));
        assert_eq!(Instance::plan(dir.path(), &NO_OPTIONS).unwrap().mdts, 3);
        let text = fs::read_to_string(dir.path().join(INSTANCE_FILE)).unwrap();
        assert!(text.contains("\"format_version\": 2"), "{text}");
        assert!(plan_error(dir.path(), &with_mdts(2)).contains("3 MDTs"));
    }

    #[test]
    fn directory_with_foreign_files_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.tex"), "x").unwrap();
        assert!(plan_error(dir.path(), &NO_OPTIONS).contains("thesis.tex"));
        assert!(plan_error(&dir.path().join("thesis.tex"), &NO_OPTIONS).contains("not a directory"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn incomplete_directory_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(INCOMPLETE_FILE), "{}").unwrap();
        assert!(plan_error(dir.path(), &NO_OPTIONS).contains("is incomplete"));
    }

    #[test]
    fn newer_format_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join(INSTANCE_FILE),
            r#"{"format_version": 99, "unknown": 1}"#,
        )
        .unwrap();
        assert!(plan_error(dir.path(), &NO_OPTIONS).contains("newer Nacre (format 99"));
    }

    #[test]
    fn second_lock_on_a_directory_fails() {
        let dir = tempfile::tempdir().unwrap();
        let first_lock = lock(dir.path()).unwrap();
        assert!(lock(dir.path()).is_err());
        drop(first_lock);
        assert!(lock(dir.path()).is_ok());
    }
}
