//! The loads of an experiment: LNet selftest, or operations on files through mdtest.

use super::rows::Directory;
use super::size::ClientThreads;
use crate::lnet::Point;
use crate::{BenchError, mdsrate, mdtest};
use std::fmt;

/// A load.
#[derive(Clone, Debug, PartialEq)]
pub enum DemoLoad {
    /// LNet selftest.
    Lnet(Point),
    /// Operations on files.
    Files(FileLoad),
}

/// The operation that creates a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateMethod {
    /// mknod.
    Mknod,
    /// Open-create and close, with this number of stripes.
    Open(u16),
}

/// A load that creates files, stats them if `stat` is set, and removes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLoad {
    /// Number of clients, and of threads on each client.
    pub client_threads: ClientThreads,
    /// Whether the threads share one directory.
    pub directory: Directory,
    /// The operation that creates the files.
    pub create_method: CreateMethod,
    /// Number of files of all threads together. A run rounds it up to a multiple of the threads.
    pub files: usize,
    /// Whether to stat the files.
    pub stat: bool,
}

impl FileLoad {
    /// The mdtest runs of this load, each with new mounts.
    pub fn phases(&self) -> Vec<mdtest::Options> {
        let all = mdtest::Options {
            items: self.files.div_ceil(self.client_threads.total()) as u64,
            files_only: true,
            unique_dir_per_task: self.directory == Directory::PerThread,
            make_node: self.create_method == CreateMethod::Mknod,
            stripes: match self.create_method {
                CreateMethod::Mknod => None,
                CreateMethod::Open(stripes) => Some(stripes),
            },
            // As in mdtest, `-C -r` together select both phases.
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
        let stat_and_remove = mdtest::Options {
            create_only: false,
            stat_only: true,
            ..all
        };
        vec![create, stat_and_remove]
    }

    /// The mdsrate runs of this load, each with new mounts, in directories on the first `mdts`
    /// metadata targets in turn.
    ///
    /// # Errors
    ///
    /// [`BenchError::Options`] if the format of the directories' names is invalid.
    pub fn rates(&self, mdts: usize) -> Result<Vec<mdsrate::Options>, BenchError> {
        let threads = self.client_threads.total();
        let modes: &[mdsrate::Mode] = match self.create_method {
            CreateMethod::Mknod => &[mdsrate::Mode::Mknod, mdsrate::Mode::Unlink],
            CreateMethod::Open(_) => &[mdsrate::Mode::Create, mdsrate::Mode::Stat, mdsrate::Mode::Unlink],
        };
        let dirs = mdsrate::Format::parse(&format!("on-{mdts}-mdts-%d"))?;
        let of_mode = |mode: &mdsrate::Mode| mdsrate::Options {
            dirs: Some(dirs.clone()),
            dir_count: threads,
            mdt_count: Some(mdts as u32),
            ..mdsrate::Options::new(*mode, self.files.div_ceil(threads) as u64)
        };
        Ok(modes.iter().map(of_mode).collect())
    }

    /// Stripe count of the files; `None` with mknod.
    pub fn stripes(&self) -> Option<u16> {
        match self.create_method {
            CreateMethod::Mknod => None,
            CreateMethod::Open(stripes) => Some(stripes),
        }
    }
}

/// A stripe count for titles, such as `2 stripes`.
pub(super) fn stripes_in_words(count: u16) -> String {
    match count {
        1 => "1 stripe".to_owned(),
        n => format!("{n} stripes"),
    }
}

impl fmt::Display for DemoLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DemoLoad::Lnet(p) => write!(
                f,
                "{}, {} x {} in flight",
                p.load.name(),
                p.clients,
                p.concurrency
            ),
            DemoLoad::Files(l) => {
                let operations = match (l.create_method, l.stat) {
                    (CreateMethod::Mknod, _) => "mknod".to_owned(),
                    (CreateMethod::Open(n), true) => format!("create/stat/unlink, {}", stripes_in_words(n)),
                    (CreateMethod::Open(n), false) => format!("create/unlink, {}", stripes_in_words(n)),
                };
                write!(
                    f,
                    "{operations}, {}, {} threads",
                    l.directory.in_words(),
                    l.client_threads
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn create_and_stat_are_separate_mdtest_runs() {
        let load = FileLoad {
            client_threads: ClientThreads {
                clients: 2,
                threads: 3,
            },
            directory: Directory::Shared,
            create_method: CreateMethod::Open(0),
            files: 20,
            stat: true,
        };
        let phases = load.phases();
        let phases_of = |o: &mdtest::Options| (o.create_only, o.stat_only, o.remove_only, o.items, o.stripes);
        assert_eq!(
            phases.iter().map(phases_of).collect::<Vec<_>>(),
            [(true, false, false, 4, Some(0)), (false, true, true, 4, Some(0))]
        );
        let mknod = FileLoad {
            create_method: CreateMethod::Mknod,
            stat: false,
            directory: Directory::PerThread,
            ..load
        };
        let phases = mknod.phases();
        assert!(phases[0].make_node && phases[0].unique_dir_per_task && phases[0].remove_only);
        assert_eq!(phases.len(), 1);
    }

    #[test]
    fn directories_take_the_metadata_targets_in_turn() -> Result<(), BenchError> {
        let load = FileLoad {
            client_threads: ClientThreads {
                clients: 2,
                threads: 4,
            },
            directory: Directory::PerThread,
            create_method: CreateMethod::Open(1),
            files: 20,
            stat: true,
        };
        let runs = load.rates(3)?;
        assert_eq!(runs.len(), 3);
        for run in runs {
            assert_eq!(
                (run.dir_count, run.mdt_count, run.file_count),
                (8, Some(3), Some(3))
            );
        }
        Ok(())
    }
}
