//! Runs one sequence: executes each step on the model and on a mount, compares the affected paths
//! as seen from a mount that the step selects, and finally the complete tree from every mount.

use crate::model::{Cred, FsBehaviour, Ino, Kind, Model, ROOT};
use crate::outcome::{Answer, Bytes};
use crate::real::{RealFs, attr};
use crate::step::{Op, Step};
use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// A directory in which sequences run, opened through each mount.
pub(crate) struct MountedDir {
    pub(crate) mounts: Vec<OwnedFd>,
    pub(crate) behaviour: FsBehaviour,
}

/// State of a running sequence.
struct Trial {
    model: Model,
    real: RealFs,
    /// The real inode number of each inode of the model.
    real_inos: BTreeMap<Ino, u64>,
}

impl MountedDir {
    /// Runs a sequence in a new directory of this name and removes the directory. Returns the first
    /// difference.
    pub(crate) fn run_in_new_dir(&self, name: &str, steps: &[Step], mounts: usize) -> Result<(), String> {
        let created = rustix::fs::mkdirat(&self.mounts[0], name, Mode::RWXU);
        created.map_err(|e| format!("cannot create {name}: {e}"))?;
        let result = self.run_steps(name, steps, mounts);
        let removed = remove_tree(&self.mounts[steps.len() % mounts], name);
        result.and(removed.map_err(|e| format!("cannot remove {name}: {e}")))
    }

    fn run_steps(&self, name: &str, steps: &[Step], mounts: usize) -> Result<(), String> {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |mount: &OwnedFd| rustix::fs::openat(mount, name, how, Mode::empty());
        let roots: Result<Vec<OwnedFd>, Errno> = self.mounts[..mounts].iter().map(open).collect();
        let roots = roots.map_err(|e| format!("cannot open {name} on every mount: {e}"))?;
        rustix::fs::fchmod(&roots[0], Mode::from_raw_mode(0o777)).map_err(|e| format!("chmod: {e}"))?;
        let mut trial = Trial {
            model: Model::new(self.behaviour),
            real: RealFs::new(roots),
            real_inos: BTreeMap::new(),
        };
        for (i, step) in steps.iter().enumerate() {
            trial
                .step(step)
                .map_err(|difference| format!("step {i}, {step:?}: {difference}"))?;
        }
        (0..mounts).try_for_each(|mount| {
            trial
                .check_tree(mount)
                .map_err(|difference| format!("at the end, seen from mount {mount}: {difference}"))
        })
    }
}

impl Trial {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        let mounts = self.real.roots.len();
        let mount = step.mount % mounts;
        if self.locks_a_directory(&step.op) {
            return Ok(());
        }
        let before: Vec<String> = self.affected_paths(step);
        let expected = self.model.execute(step, mount);
        let found = self.real.execute(step, mount);
        if found != expected {
            return Err(format!("answered {found:?}, not {expected:?}"));
        }
        if let (Op::Truncate { path, .. }, Ok(_)) = (&step.op, &found) {
            // The real truncate opens and closes the file.
            let ino = self.model.find(Cred(0), path, true).map_err(|e| e.to_string())?;
            self.model.release_fcntl_locks(mount, ino);
        }
        let observer = step.probe % mounts;
        let mut paths = self.affected_paths(step);
        paths.extend(before);
        paths.sort();
        paths.dedup();
        paths.iter().try_for_each(|path| {
            self.check_path(path, observer, mount, step.probe)
                .map_err(|difference| format!("then {path} seen from mount {observer}: {difference}"))
        })
    }

    /// Whether the operation locks a directory. Trials skip such operations: the kernel sends no
    /// FUSE request for them, so that the locks of one mount do not conflict with those of another.
    fn locks_a_directory(&self, op: &Op) -> bool {
        let (Op::Flock { slot, .. } | Op::Fcntl { slot, .. }) = op else {
            return false;
        };
        let handle = self.model.handles.get(slot);
        handle.is_some_and(|handle| self.model.inode(handle.ino).is_dir())
    }

    /// The paths that a step affects.
    fn affected_paths(&self, step: &Step) -> Vec<String> {
        let mut paths: Vec<String> = step.op.paths().into_iter().map(str::to_owned).collect();
        if let Some(handle) = step.op.slot().and_then(|slot| self.model.handles.get(&slot)) {
            paths.extend(self.model.path_of(handle.ino));
        }
        paths
    }

    /// Compares a path as seen from mount `observer`: its attributes and, depending on `probe`, its
    /// contents or the listing of its directory. Compares the times with those on mount `actor`,
    /// which executed the step.
    fn check_path(&mut self, path: &str, observer: usize, actor: usize, probe: usize) -> Result<(), String> {
        let expected = self.model.find_as_root(path);
        let found = self.real.stat(observer, path, false);
        let (ino, stat) = match (expected, found) {
            (Ok(ino), Ok(stat)) => (ino, stat),
            (Err(expected), Err(found)) if expected == found => return Ok(()),
            (expected, found) => {
                let found = found.map(|stat| attr(&stat));
                return Err(format!(
                    "{found:?}, not {:?}",
                    expected.map(|ino| self.model.attr(ino))
                ));
            }
        };
        self.check_inode(ino, &stat)?;
        if observer != actor {
            let actor_stat = self.real.stat(actor, path, false).map_err(|e| e.to_string())?;
            let times = |s: &Stat| (s.st_mtime, s.st_mtime_nsec, s.st_ctime, s.st_ctime_nsec);
            if times(&actor_stat) != times(&stat) {
                return Err(format!(
                    "mtime and ctime {:?}, but {:?} on the mount that executed the step",
                    times(&stat),
                    times(&actor_stat)
                ));
            }
        }
        match probe / 4 % 3 {
            0 => self.check_content(path, ino, observer),
            1 => match path.rsplit_once('/') {
                Some((dir, _)) => self.check_listing(dir, observer),
                None => self.check_listing(".", observer),
            },
            _ => Ok(()),
        }
    }

    /// Compares the attributes (except the root's), the inode number, and an mtime that was
    /// set explicitly.
    fn check_inode(&mut self, ino: Ino, stat: &Stat) -> Result<(), String> {
        let (found, expected) = (attr(stat), self.model.attr(ino));
        if found != expected && ino != ROOT {
            return Err(format!("{found:?}, not {expected:?}"));
        }
        let known = *self.real_inos.entry(ino).or_insert(stat.st_ino);
        if known != stat.st_ino {
            return Err(format!("inode number {}, previously {known}", stat.st_ino));
        }
        match self.model.inode(ino).mtime {
            Some(mtime) if mtime != stat.st_mtime => Err(format!("mtime {}, not {mtime}", stat.st_mtime)),
            _ => Ok(()),
        }
    }

    fn check_content(&mut self, path: &str, ino: Ino, observer: usize) -> Result<(), String> {
        let Kind::File(expected) = &self.model.inode(ino).kind else {
            return Ok(());
        };
        let found = self
            .real
            .content(observer, path, expected.len() + 4096)
            .map_err(|e| format!("cannot read: {e}"))?;
        if found != *expected {
            return Err(format!("{:?}, not {:?}", Bytes(found), Bytes(expected.clone())));
        }
        self.model.release_fcntl_locks(observer, ino);
        Ok(())
    }

    fn check_listing(&self, dir: &str, observer: usize) -> Result<(), String> {
        let Ok(ino) = self.model.find(Cred(0), dir, true) else {
            return Ok(());
        };
        if !self.model.inode(ino).is_dir() {
            return Ok(());
        }
        let found = self
            .real
            .names(observer, dir)
            .map_err(|e| format!("cannot list {dir}: {e}"))?;
        if !found.iter().eq(self.model.entries(ino).keys()) {
            return Err(format!(
                "{dir} has {found:?}, not {:?}",
                self.model.entries(ino).keys()
            ));
        }
        Ok(())
    }

    /// Compares the complete tree, seen from one mount.
    fn check_tree(&mut self, mount: usize) -> Result<(), String> {
        for (path, ino) in self.model.tree() {
            let on = |difference: String| format!("{path}: {difference}");
            let stat = self.real.stat(mount, &path, false);
            let stat = stat.map_err(|e| format!("{path}: {e}, but it must exist"))?;
            self.check_inode(ino, &stat).map_err(on)?;
            self.check_content(&path, ino, mount).map_err(on)?;
            match &self.model.inode(ino).kind {
                Kind::Dir(_) => self.check_listing(&path, mount).map_err(on)?,
                // The system call would follow the symbolic link.
                Kind::Symlink(_) => continue,
                Kind::File(_) => {}
            }
            let names = Answer::Names(self.model.inode(ino).xattrs.keys().cloned().collect());
            let found = self.real.xattr_names(mount, &path);
            if found.as_ref() != Ok(&names) {
                return Err(format!("{path}: extended attributes {found:?}, not {names:?}"));
            }
        }
        Ok(())
    }
}

/// Removes a directory tree.
fn remove_tree(parent: &OwnedFd, name: &str) -> Result<(), Errno> {
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(parent, name, how, Mode::empty())?;
    let entries: Vec<_> = rustix::fs::Dir::read_from(&dir)?.collect::<Result<_, _>>()?;
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "." || name == ".." {
            continue;
        }
        match rustix::fs::unlinkat(&dir, name.as_str(), AtFlags::empty()) {
            Err(Errno::ISDIR) => remove_tree(&dir, &name)?,
            other => other?,
        }
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}
