//! Random operations on the store and on a model: both give the same results and the same tree, and
//! the store stays consistent.

use std::collections::BTreeMap;
use testbase::Wait;

use proptest::prelude::{Strategy, any, prop, prop_oneof, proptest};
use wire::{Errno, Fid, MDS_FMODE_READ, RenameFlags};

use super::{Fixture, ROOT, check};
use crate::store::NameHash;

/// One of a few directories, by order of creation.
type Dir = u8;
/// One of a few names.
type Name = u8;

#[derive(Clone, Debug)]
enum Op {
    Create(Dir, Name),
    Mkdir(Dir, Name),
    Unlink(Dir, Name),
    Rmdir(Dir, Name),
    Link((Dir, Name), (Dir, Name)),
    Rename((Dir, Name), (Dir, Name)),
    Exchange((Dir, Name), (Dir, Name)),
    Open(Dir, Name),
    Close(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let entry = || (0u8..6, 0u8..4);
    prop_oneof![
        entry().prop_map(|(d, n)| Op::Create(d, n)),
        entry().prop_map(|(d, n)| Op::Mkdir(d, n)),
        entry().prop_map(|(d, n)| Op::Unlink(d, n)),
        entry().prop_map(|(d, n)| Op::Rmdir(d, n)),
        (entry(), entry()).prop_map(|(a, b)| Op::Link(a, b)),
        (entry(), entry()).prop_map(|(a, b)| Op::Rename(a, b)),
        (entry(), entry()).prop_map(|(a, b)| Op::Exchange(a, b)),
        entry().prop_map(|(d, n)| Op::Open(d, n)),
        any::<u8>().prop_map(Op::Close),
    ]
}

/// The model. The methods named for operations return the expected result and change nothing.
#[derive(Default)]
struct Model {
    /// Inodes by directory and name.
    entries: BTreeMap<(Fid, String), Fid>,
    /// All directories ever created.
    dirs: Vec<Fid>,
    /// Open inodes, once per handle.
    open: Vec<Fid>,
}

impl Model {
    fn is_dir(&self, fid: Fid) -> bool {
        self.dirs.contains(&fid)
    }

    fn get(&self, entry: &(Fid, String)) -> Option<Fid> {
        self.entries.get(entry).copied()
    }

    fn is_empty(&self, dir: Fid) -> bool {
        !self.entries.keys().any(|(d, _)| *d == dir)
    }

    fn is_removed(&self, dir: Fid) -> bool {
        dir != ROOT && !self.entries.values().any(|f| *f == dir)
    }

    fn is_at_or_below(&self, mut fid: Fid, above: Fid) -> bool {
        loop {
            if fid == above {
                return true;
            }
            match self.entries.iter().find(|(_, f)| **f == fid) {
                Some(((parent, _), _)) => fid = *parent,
                None => return false,
            }
        }
    }

    fn link(&self, src: &(Fid, String), dst: &(Fid, String)) -> Result<Fid, Errno> {
        let file = self.get(src).ok_or(Errno::ENOENT)?;
        match () {
            _ if self.is_dir(file) => Err(Errno::EPERM),
            _ if self.get(dst).is_some() => Err(Errno::EEXIST),
            _ => Ok(file),
        }
    }

    fn remove(&self, entry: &(Fid, String), is_rmdir: bool) -> Result<Fid, Errno> {
        let fid = self.get(entry).ok_or(Errno::ENOENT)?;
        match (is_rmdir, self.is_dir(fid)) {
            (true, false) => Err(Errno::ENOTDIR),
            (false, true) => Err(Errno::EISDIR),
            (true, true) if !self.is_empty(fid) => Err(Errno::ENOTEMPTY),
            _ => Ok(fid),
        }
    }

    fn exchange(&self, src: &(Fid, String), dst: &(Fid, String)) -> Result<(Fid, Fid), Errno> {
        let fid = self.get(src).ok_or(Errno::ENOENT)?;
        let other = self.get(dst).ok_or(Errno::ENOENT)?;
        let below = |fid, dir| self.is_dir(fid) && self.is_at_or_below(dir, fid);
        match below(fid, dst.0) || below(other, src.0) {
            true => Err(Errno::EINVAL),
            false => Ok((fid, other)),
        }
    }

    fn rename(&self, src: &(Fid, String), dst: &(Fid, String)) -> Result<Fid, Errno> {
        let fid = self.get(src).ok_or(Errno::ENOENT)?;
        if self.is_dir(fid) && self.is_at_or_below(dst.0, fid) {
            return Err(Errno::EINVAL);
        }
        let Some(victim) = self.get(dst).filter(|v| *v != fid) else {
            return Ok(fid);
        };
        match (self.is_dir(fid), self.is_dir(victim)) {
            (true, false) => Err(Errno::ENOTDIR),
            (false, true) => Err(Errno::EISDIR),
            (true, true) if !self.is_empty(victim) => Err(Errno::ENOTEMPTY),
            _ => Ok(fid),
        }
    }
}

/// Executes the operations on a store and on the model, and compares them.
fn run(mut f: Fixture, ops: Vec<Op>) {
    let mut m = Model {
        dirs: vec![ROOT],
        ..Model::default()
    };
    for op in ops {
        let dirs: Vec<Fid> = m.dirs.iter().copied().filter(|d| !m.is_removed(*d)).collect();
        let entry = |(d, n): (Dir, Name)| (dirs[usize::from(d) % dirs.len()], format!("n{n}"));
        match op {
            Op::Create(d, n) | Op::Mkdir(d, n) => {
                let (dir, name) = entry((d, n));
                let mode = if matches!(op, Op::Mkdir(..)) {
                    0o040755
                } else {
                    0o100644
                };
                let created = f.make(dir, &name, mode);
                match m.get(&(dir, name.clone())) {
                    Some(_) => assert_eq!(created, Err(Errno::EEXIST)),
                    None => {
                        let fid = created.unwrap();
                        m.entries.insert((dir, name), fid);
                        m.dirs.extend((mode == 0o040755).then_some(fid));
                    }
                }
            }
            Op::Unlink(d, n) | Op::Rmdir(d, n) => {
                let is_rmdir = matches!(op, Op::Rmdir(..));
                let key = entry((d, n));
                let expected = m.remove(&key, is_rmdir);
                let result = if is_rmdir {
                    f.rmdir(key.0, &key.1)
                } else {
                    f.unlink(key.0, &key.1)
                };
                assert_eq!(result.map(|d| d.fid), expected);
                if expected.is_ok() {
                    m.entries.remove(&key);
                }
            }
            Op::Link(a, b) => {
                let (src, dst) = (entry(a), entry(b));
                let expected = m.link(&src, &dst);
                let Some(file) = m.get(&src) else { continue };
                assert_eq!(f.link(file, dst.0, &dst.1).map(|d| d.fid), expected);
                m.entries.extend(expected.ok().map(|fid| (dst, fid)));
            }
            Op::Rename(a, b) => {
                let (src, dst) = (entry(a), entry(b));
                let expected = m.rename(&src, &dst);
                let result = f.rename((src.0, &src.1), (dst.0, &dst.1));
                assert_eq!(result.map(|_| ()), expected.map(|_| ()));
                if let Ok(fid) = expected
                    && m.get(&dst) != Some(fid)
                {
                    m.entries.remove(&src);
                    m.entries.insert(dst, fid);
                }
            }
            Op::Exchange(a, b) => {
                let (src, dst) = (entry(a), entry(b));
                let expected = m.exchange(&src, &dst);
                let result = f.rename_with((src.0, &src.1), (dst.0, &dst.1), RenameFlags::EXCHANGE);
                assert_eq!(result.map(|_| ()), expected.map(|_| ()));
                if let Ok((moved, other)) = expected {
                    m.entries.insert(src, other);
                    m.entries.insert(dst, moved);
                }
            }
            Op::Open(d, n) => {
                let Some(fid) = m.get(&entry((d, n))) else {
                    continue;
                };
                f.open(fid, MDS_FMODE_READ).unwrap();
                m.open.push(fid);
            }
            Op::Close(i) if !m.open.is_empty() => {
                let fid = m.open.swap_remove(usize::from(i) % m.open.len());
                f.close(fid, MDS_FMODE_READ);
            }
            Op::Close(_) => {}
        }
    }
    check::assert_consistent(&f.store);
    for dir in m.dirs.iter().filter(|d| !m.is_removed(**d)) {
        let mut found: Vec<_> = f.store.entries(*dir, NameHash(0), usize::MAX).wait().unwrap();
        found.sort_by(|a, b| a.1.cmp(&b.1));
        let found: Vec<_> = found
            .into_iter()
            .map(|(_, name, entry)| (name.to_vec(), entry.fid))
            .collect();
        let in_dir = m.entries.iter().filter(|((d, _), _)| d == dir);
        let expected: Vec<_> = in_dir
            .map(|((_, n), fid)| (n.clone().into_bytes(), *fid))
            .collect();
        assert_eq!(found, expected);
    }
    while let Some(fid) = m.open.pop() {
        f.close(fid, MDS_FMODE_READ);
    }
    assert!(f.store.orphans(None).wait().unwrap().is_empty());
}

proptest! {
    #[test]
    fn random_operations_agree_with_the_model(ops in prop::collection::vec(op(), 0..120)) {
        run(Fixture::new(), ops);
    }

    /// Here most operations find that the cache lacks their directory when they are applied.
    #[test]
    fn random_operations_agree_with_the_model_almost_without_a_cache(
        ops in prop::collection::vec(op(), 0..120)
    ) {
        run(Fixture::with_two_cached_inodes(), ops);
    }
}
