//! What the clients of an experiment do: LNet selftest, or files by runs of mdtest.

use super::rows::Directory;
use super::size::Crowd;
use crate::lnet::Point;
use crate::mdtest;
use std::fmt;

/// What clients do.
#[derive(Clone, Debug, PartialEq)]
pub enum Load {
    /// LNet selftest.
    Lnet(Point),
    /// Files.
    Files(FileLoad),
}

/// How files are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Make {
    /// By mknod.
    Mknod,
    /// By open and close, with so many objects.
    Open(u16),
}

/// Files that are made, perhaps looked at, and removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLoad {
    /// By whom.
    pub crowd: Crowd,
    /// Where.
    pub directory: Directory,
    /// How.
    pub make: Make,
    /// How many, of all threads.
    pub files: usize,
    /// Their attributes are asked for.
    pub stat: bool,
}

impl FileLoad {
    /// The runs of mdtest that it consists of, each by mounts of its own.
    pub fn phases(&self) -> Vec<mdtest::Options> {
        let all = mdtest::Options {
            items: self.files.div_ceil(self.crowd.all()) as u64,
            files_only: true,
            unique_dir_per_task: self.directory == Directory::PerThread,
            make_node: self.make == Make::Mknod,
            stripes: match self.make {
                Make::Mknod => None,
                Make::Open(stripes) => Some(stripes),
            },
            create_only: true,
            remove_only: true,
            ..mdtest::Options::default()
        };
        if !self.stat {
            return vec![all];
        }
        let create = mdtest::Options {
            remove_only: false,
            ..all.clone()
        };
        let rest = mdtest::Options {
            create_only: false,
            stat_only: true,
            ..all
        };
        vec![create, rest]
    }

    /// Stripes of its files, where they are opened.
    pub fn stripes(&self) -> Option<u16> {
        match self.make {
            Make::Mknod => None,
            Make::Open(stripes) => Some(stripes),
        }
    }
}

/// A stripe count in words.
pub(super) fn stripes(count: u16) -> String {
    match count {
        1 => "1 stripe".to_owned(),
        n => format!("{n} stripes"),
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Load::Lnet(p) => write!(
                f,
                "{}, {} x {} in flight",
                p.load.name(),
                p.clients,
                p.concurrency
            ),
            Load::Files(l) => {
                let what = match (l.make, l.stat) {
                    (Make::Mknod, _) => "mknod".to_owned(),
                    (Make::Open(n), true) => format!("create/stat/unlink, {}", stripes(n)),
                    (Make::Open(n), false) => format!("create/unlink, {}", stripes(n)),
                };
                write!(f, "{what}, {}, {} threads", l.directory.words(), l.crowd)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_created_by_other_mounts_than_look_at_them() {
        let load = FileLoad {
            crowd: Crowd {
                clients: 2,
                threads: 3,
            },
            directory: Directory::Shared,
            make: Make::Open(0),
            files: 20,
            stat: true,
        };
        let phases = load.phases();
        let what = |o: &mdtest::Options| (o.create_only, o.stat_only, o.remove_only, o.items, o.stripes);
        assert_eq!(
            phases.iter().map(what).collect::<Vec<_>>(),
            [(true, false, false, 4, Some(0)), (false, true, true, 4, Some(0))]
        );
        let mknod = FileLoad {
            make: Make::Mknod,
            stat: false,
            directory: Directory::PerThread,
            ..load
        };
        let phases = mknod.phases();
        assert!(phases[0].make_node && phases[0].unique_dir_per_task && phases[0].remove_only);
        assert_eq!(phases.len(), 1);
    }
}
