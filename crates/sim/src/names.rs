//! The specification of the name space, as programs see it: two directories with a few names.

use std::collections::{BTreeMap, BTreeSet};

use wire::{Errno, Fid};

use crate::linear::Spec;

/// The place of a name: the number of the directory and the number of the name.
pub type Place = (u8, u8);

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A regular file.
    File,
    /// An empty directory.
    Dir,
    /// A named pipe.
    Fifo,
    /// A symbolic link, with the number in its target.
    Symlink(u16),
}

/// A call on names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Creates a file, exclusively.
    Make(Place, Kind),
    /// Opens a file, and creates it if it is missing.
    Open(Place),
    /// Looks up a name.
    Lookup(Place),
    /// Removes a directory, or the name of another file.
    Remove(Place, Kind),
    /// Renames.
    Rename(Place, Place),
    /// Links the file that the caller has open to another name.
    Link(Fid, Place),
    /// Links a directory into itself, which must fail.
    LinkDir(Place),
    /// Lists a directory.
    List(u8),
    /// Reads the number of names of a file.
    Links(Fid, u32),
    /// Waits until all earlier calls are on disk.
    Sync,
    /// The metadata server crashes: it may lose the calls since the last sync.
    Crash,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Success.
    Done,
    /// A file that the call found or created.
    Found(Fid, Kind),
    /// A file that an open created.
    Made(Fid),
    /// The names of a directory.
    Entries(BTreeMap<u8, Fid>),
    /// An error after which nothing has changed.
    Failed(Errno),
    /// An error after which the change may or may not have happened.
    Unclear(Errno),
}

/// Names and their files.
pub type Tree = BTreeMap<Place, (Fid, Kind)>;

/// The name space, and the earlier states to which a crash can return it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    tree: Tree,
    /// Empty if the metadata server never crashes in this run.
    older: BTreeSet<Tree>,
}

/// The specification. `crashes`: the metadata server crashes in this run.
pub struct NameSpec {
    /// Whether older states must be kept.
    pub crashes: bool,
}

impl NameSpec {
    fn changed(&self, state: &State, tree: Tree) -> Vec<State> {
        let mut older = state.older.clone();
        if self.crashes && tree != state.tree {
            older.insert(state.tree.clone());
        }
        vec![State { tree, older }]
    }
}

impl Spec for NameSpec {
    type State = State;
    type Call = (Call, Outcome);

    fn step(&self, state: &State, (call, outcome): &(Call, Outcome)) -> Vec<State> {
        let tree = &state.tree;
        let same = |holds: bool| holds.then(|| state.clone()).into_iter().collect();
        match call {
            Call::Sync => vec![State {
                tree: tree.clone(),
                older: BTreeSet::new(),
            }],
            Call::Crash => {
                let trees = state.older.iter().chain([tree]);
                let after = |tree: &Tree| State {
                    tree: tree.clone(),
                    older: BTreeSet::new(),
                };
                trees.map(after).collect()
            }
            Call::Lookup(place) => match (tree.get(place), outcome) {
                (Some((_, kind)), Outcome::Found(found, as_kind)) if kind == as_kind => {
                    bind(tree, [(*place, *found)]).map_or(Vec::new(), |tree| learned(state, tree))
                }
                (None, Outcome::Failed(errno)) => same(*errno == Errno::ENOENT),
                (_, Outcome::Unclear(_)) => same(true),
                _ => Vec::new(),
            },
            Call::LinkDir(_) => same(matches!(
                outcome,
                Outcome::Failed(Errno::EPERM) | Outcome::Unclear(_)
            )),
            Call::List(dir) => match outcome {
                Outcome::Entries(entries) => {
                    let names = tree.range((*dir, 0)..=(*dir, u8::MAX));
                    if !names.map(|(place, _)| place.1).eq(entries.keys().copied()) {
                        return Vec::new();
                    }
                    let found = entries.iter().map(|(name, fid)| ((*dir, *name), *fid));
                    bind(tree, found).map_or(Vec::new(), |tree| learned(state, tree))
                }
                _ => same(matches!(outcome, Outcome::Unclear(_))),
            },
            Call::Links(fid, links) => {
                let known = tree.values().filter(|(file, _)| file == fid).count();
                let unknown = tree.values().filter(|(file, _)| *file == Fid::ZERO).count();
                same((known..=known + unknown).contains(&(*links as usize)))
            }
            // A target may lack space at any time.
            _ if *outcome == Outcome::Failed(Errno::ENOSPC) => same(true),
            change => match (plan(tree, change, outcome), outcome) {
                (Ok(_), Outcome::Failed(_)) => Vec::new(),
                (Ok(tree), _) => self.changed(state, tree),
                (Err(errno), Outcome::Failed(failed)) => same(errno == *failed),
                // The call failed for another reason; nothing changed.
                (Err(_), Outcome::Unclear(_)) => same(true),
                (Err(_), _) => Vec::new(),
            },
        }
    }
}

/// The state after a caller learned the FIDs of files.
fn learned(state: &State, tree: Tree) -> Vec<State> {
    let older = state.older.clone();
    vec![State { tree, older }]
}

/// The tree with the FIDs that a caller found at some places; `None` if the tree has other FIDs
/// there. A file has an unknown FID ([`Fid::ZERO`]) while no caller knows whether its create
/// succeeded.
fn bind(tree: &Tree, found: impl IntoIterator<Item = (Place, Fid)>) -> Option<Tree> {
    let mut tree = tree.clone();
    for (place, fid) in found {
        let entry = tree.get_mut(&place)?;
        match entry.0 {
            Fid::ZERO => entry.0 = fid,
            known if known == fid => {}
            _ => return None,
        }
    }
    Some(tree)
}

/// The tree after a change, or the error that the change must return. Also returns an error if the
/// outcome names another file than the tree has.
fn plan(tree: &Tree, change: &Call, outcome: &Outcome) -> Result<Tree, Errno> {
    let mut tree = tree.clone();
    match change {
        Call::Make(place, kind) => {
            if tree.contains_key(place) {
                return Err(Errno::EEXIST);
            }
            let fid = match outcome {
                Outcome::Found(fid, _) | Outcome::Made(fid) => *fid,
                // The file exists under a FID that the caller never learned.
                _ => Fid::ZERO,
            };
            tree.insert(*place, (fid, *kind));
        }
        Call::Open(place) => match (tree.get(place), outcome) {
            (Some((_, Kind::Dir)), _) => return Err(Errno::EISDIR),
            (Some((_, Kind::Symlink(_) | Kind::Fifo)), _) => return Err(Errno::EOPNOTSUPP),
            (Some(_), Outcome::Made(_)) => return Err(Errno::EEXIST),
            (Some(_), Outcome::Found(found, _)) => {
                return bind(&tree, [(*place, *found)]).ok_or(Errno::EIO);
            }
            (Some(_), _) => {}
            (None, Outcome::Found(..)) => return Err(Errno::ENOENT),
            (None, Outcome::Made(fid)) => drop(tree.insert(*place, (*fid, Kind::File))),
            (None, _) => drop(tree.insert(*place, (Fid::ZERO, Kind::File))),
        },
        Call::Remove(place, kind) => match (tree.get(place), kind) {
            (None, _) => return Err(Errno::ENOENT),
            (Some((_, Kind::Dir)), Kind::Dir) => drop(tree.remove(place)),
            (Some((_, Kind::Dir)), _) => return Err(Errno::EISDIR),
            (Some(_), Kind::Dir) => return Err(Errno::ENOTDIR),
            _ => drop(tree.remove(place)),
        },
        Call::Rename(from, to) => {
            let Some(&source) = tree.get(from) else {
                return Err(Errno::ENOENT);
            };
            match (source, tree.get(to)) {
                ((fid, _), Some(&(target, _))) if fid == target && fid != Fid::ZERO => return Ok(tree),
                ((_, Kind::Dir), Some((_, Kind::Dir))) => {}
                ((_, Kind::Dir), Some(_)) => return Err(Errno::ENOTDIR),
                (_, Some((_, Kind::Dir))) => return Err(Errno::EISDIR),
                _ => {}
            }
            tree.remove(from);
            tree.insert(*to, source);
        }
        Call::Link(fid, place) => {
            let exists = tree.values().any(|(file, _)| file == fid);
            match (exists, tree.contains_key(place)) {
                (true, true) => return Err(Errno::EEXIST),
                (false, false) => return Err(Errno::ENOENT),
                // Both errors are right.
                (false, true) if *outcome == Outcome::Failed(Errno::ENOENT) => return Err(Errno::ENOENT),
                (false, true) => return Err(Errno::EEXIST),
                (true, false) => drop(tree.insert(*place, (*fid, Kind::File))),
            }
        }
        Call::Lookup(_) | Call::List(_) | Call::Links(..) | Call::LinkDir(_) | Call::Sync | Call::Crash => {}
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::{Timed, Verdict, check};

    const A: Place = (0, 0);
    const B: Place = (1, 1);

    fn fid(n: u32) -> Fid {
        Fid::new(0x2_0000_0400, n, 0)
    }

    fn verdict(crashes: bool, calls: &[(Call, Outcome)]) -> Verdict {
        let timed = |(i, call): (usize, &(Call, Outcome))| Timed {
            call: call.clone(),
            start: 2 * i as u64,
            end: 2 * i as u64 + 1,
            definite: !matches!(call.1, Outcome::Unclear(_)),
        };
        let history: Vec<_> = calls.iter().enumerate().map(timed).collect();
        check(&NameSpec { crashes }, State::default(), &history, 1000)
    }

    fn made(place: Place, n: u32) -> (Call, Outcome) {
        (Call::Make(place, Kind::File), Outcome::Found(fid(n), Kind::File))
    }

    fn found(place: Place, n: u32) -> (Call, Outcome) {
        (Call::Lookup(place), Outcome::Found(fid(n), Kind::File))
    }

    fn absent(place: Place) -> (Call, Outcome) {
        (Call::Lookup(place), Outcome::Failed(Errno::ENOENT))
    }

    #[test]
    fn a_change_is_seen_by_later_calls() {
        let renamed = (Call::Rename(A, B), Outcome::Done);
        assert_eq!(
            verdict(false, &[made(A, 1), renamed.clone(), absent(A), found(B, 1)]),
            Verdict::Linear
        );
        assert_eq!(
            verdict(false, &[made(A, 1), renamed, found(A, 1)]),
            Verdict::Impossible(2)
        );
        let listed = |n| (Call::List(0), Outcome::Entries([(0, fid(n))].into()));
        assert_eq!(verdict(false, &[made(A, 1), listed(1)]), Verdict::Linear);
        assert_eq!(verdict(false, &[made(A, 1), listed(2)]), Verdict::Impossible(1));
    }

    #[test]
    fn an_unclear_create_has_one_fid() {
        let unclear = (Call::Make(A, Kind::File), Outcome::Unclear(Errno::EIO));
        assert_eq!(
            verdict(false, &[unclear.clone(), found(A, 5), found(A, 5)]),
            Verdict::Linear
        );
        assert_eq!(
            verdict(false, &[unclear, found(A, 5), found(A, 6)]),
            Verdict::Impossible(2)
        );
    }

    #[test]
    fn a_crash_loses_what_no_sync_covers() {
        let (crash, sync) = ((Call::Crash, Outcome::Done), (Call::Sync, Outcome::Done));
        assert_eq!(
            verdict(true, &[made(A, 1), crash.clone(), absent(A)]),
            Verdict::Linear
        );
        assert_eq!(
            verdict(true, &[made(A, 1), sync, crash.clone(), absent(A)]),
            Verdict::Impossible(3)
        );
        assert_eq!(
            verdict(true, &[made(A, 1), absent(A), crash]),
            Verdict::Impossible(1)
        );
    }
}
