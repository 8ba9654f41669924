//! mdtest's options, and its tree of directories with the names of all files.
//!
//! A tree has the depth `-z` and the branching factor `-b`. Directories are numbered level by level
//! from the root. With n items per directory, directory k has the items from k × n on. Tasks
//! create, rename and remove items in depth-first order of the directories; they stat and read
//! items in the order of their numbers or at random.

use crate::BenchError;
use std::path::PathBuf;
use std::time::Duration;

/// Maximum number of directories of a tree.
const TREE_MAX: u64 = 1 << 20;
/// Maximum number of items of one task.
const ITEMS_MAX: u64 = 1 << 40;

/// mdtest's options, with their names on the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// `-d`: number of directories, assigned to tasks in turn; they may be one directory through
    /// several mounts.
    pub dir_count: usize,
    /// `-n`: number of items of each task.
    pub items: u64,
    /// `-I`: number of items of each task in each directory.
    pub items_per_dir: u64,
    /// `-i`: number of iterations.
    pub iterations: usize,
    /// `--seconds`: repeat for this long instead of `iterations` times (not in mdtest).
    pub duration: Option<Duration>,
    /// `-b`: branching factor of the tree.
    pub branch_factor: u64,
    /// `-z`: depth of the tree below its root.
    pub depth: u32,
    /// `-L`: items only in leaf directories.
    pub leaf_only: bool,
    /// `-u`: each task has a tree of its own.
    pub unique_dir_per_task: bool,
    /// `-t`: include the time to resolve the paths of the trees.
    pub time_unique_dir_overhead: bool,
    /// `-D`: only directories as items.
    pub dirs_only: bool,
    /// `-F`: only files as items.
    pub files_only: bool,
    /// `-C`: create.
    pub create_only: bool,
    /// `-T`: stat.
    pub stat_only: bool,
    /// `-E`: read.
    pub read_only: bool,
    /// `-U`: rename (directories).
    pub rename_only: bool,
    /// `-r`: remove.
    pub remove_only: bool,
    /// `-w`: bytes to write to each file.
    pub write_bytes: usize,
    /// `-e`: bytes to read from each file.
    pub read_bytes: usize,
    /// `-y`: sync each file after writing.
    pub sync_file: bool,
    /// `-Y`: sync the file system at the end of each phase, inside the measured time.
    pub call_sync: bool,
    /// `-X`: verify every byte that is read.
    pub verify_read: bool,
    /// `--verify-write`: read back and verify each file after writing.
    pub verify_write: bool,
    /// `-k`: create files by mknod.
    pub make_node: bool,
    /// `-c`: task 0 creates and removes for all.
    pub collective_creates: bool,
    /// `-S`: all tasks use the same files.
    pub shared_file: bool,
    /// `-N`: after each phase, a task goes on with the items of the task this many ranks further.
    pub stride: usize,
    /// `-R`: stat and read in random order with this seed.
    pub random_seed: Option<u64>,
    /// `-W`: create files for this long; then all tasks continue until they have as many as the
    /// fastest task.
    pub stonewall: Option<Duration>,
    /// `-x`: file for the number of files that the fastest task created until the stonewall.
    pub stonewall_file: Option<PathBuf>,
    /// `-p`: pause before each test.
    pub pre_delay: Duration,
    /// `-f`, `-l`, `-s`: numbers of tasks: first, last, step.
    pub task_counts: Option<(usize, usize, usize)>,
    /// `--stripes`: stripe count of new files (not in mdtest); 0 delays the creation of objects.
    pub stripes: Option<u16>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            dir_count: 1,
            items: 0,
            items_per_dir: 0,
            iterations: 1,
            duration: None,
            branch_factor: 1,
            depth: 0,
            leaf_only: false,
            unique_dir_per_task: false,
            time_unique_dir_overhead: false,
            dirs_only: false,
            files_only: false,
            create_only: false,
            stat_only: false,
            read_only: false,
            rename_only: false,
            remove_only: false,
            write_bytes: 0,
            read_bytes: 0,
            sync_file: false,
            call_sync: false,
            verify_read: false,
            verify_write: false,
            make_node: false,
            collective_creates: false,
            shared_file: false,
            stride: 0,
            random_seed: None,
            stonewall: None,
            stonewall_file: None,
            pre_delay: Duration::ZERO,
            task_counts: None,
            stripes: None,
        }
    }
}

/// A kind of item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemKind {
    Dir,
    File,
}

/// Checked options, and values derived from them.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) options: Options,
    /// Number of directories of one tree.
    pub(crate) dirs: u64,
    /// Number of the first leaf directory.
    pub(super) first_leaf: u64,
    /// Number of items of a task in one directory.
    pub(crate) items_per_dir: u64,
    /// Number of test directories of an iteration, each with the trees of all tasks.
    pub(crate) test_dir_count: u64,
}

impl Plan {
    /// Checks the combination of options, as mdtest does.
    pub(crate) fn new(options: &Options, tasks: usize) -> Result<Plan, BenchError> {
        let mut options = options.clone();
        // From here on, as in mdtest, an option with `only` means that these items or this phase
        // are included, so several can be set.
        let all_phases = !(options.create_only
            || options.stat_only
            || options.read_only
            || options.rename_only
            || options.remove_only);
        if all_phases {
            (options.create_only, options.stat_only, options.read_only) = (true, true, true);
            (options.rename_only, options.remove_only) = (true, true);
        }
        if !options.dirs_only && !options.files_only {
            (options.dirs_only, options.files_only) = (true, true);
        }
        options.dirs_only &= !options.shared_file;
        let invalid = |message: &str| Err(BenchError::Options(message.to_owned()));
        match () {
            () if options.items == 0 && options.items_per_dir == 0 => {
                return invalid("the number of files and directories is required: -n or -I");
            }
            () if options.items.max(options.items_per_dir) > ITEMS_MAX => {
                return invalid("-n and -I must not exceed 2^40");
            }
            () if options.iterations == 0 => return invalid("-i must be at least 1"),
            () if options.duration.is_some() && options.create_only && !options.remove_only => {
                return invalid("--seconds requires a run that also removes its files (-C with -r)");
            }
            () if options.branch_factor == 0 && options.depth > 0 => {
                return invalid("-z requires a branching factor: -b 1 or more");
            }
            () if options.stonewall.is_some() && (options.branch_factor > 1 || options.depth > 0) => {
                return invalid("-W cannot be combined with a tree (-b, -z)");
            }
            () if options.shared_file && options.collective_creates => {
                return invalid("-S cannot be combined with -c");
            }
            () if options.shared_file && options.unique_dir_per_task => {
                return invalid("-S cannot be combined with -u");
            }
            () if options.write_bytes > 0 && options.make_node => {
                return invalid("-k cannot be combined with -w");
            }
            () if options.verify_read && !(options.read_only && options.read_bytes > 0) => {
                return invalid("-X requires -e BYTES, and -E if single phases are chosen");
            }
            () if options.create_only && options.read_only && options.read_bytes > options.write_bytes => {
                return invalid("-e must not exceed -w");
            }
            () if options.items > 0 && options.items_per_dir > 0 && options.unique_dir_per_task => {
                return invalid("-u allows only one of -n and -I");
            }
            () if options.items > 0
                && options.items_per_dir > 0
                && !options.items.is_multiple_of(options.items_per_dir) =>
            {
                return invalid("-n must be a multiple of -I");
            }
            () if options.stonewall.is_some() && options.items > 0 && options.items_per_dir > 0 => {
                return invalid("-W requires -n without -I");
            }
            () => {}
        }
        if let Some((first, last, step)) = options.task_counts
            && (first == 0 || last < first || last > tasks || step == 0)
        {
            return invalid(
                "-f and -l must be numbers of tasks from 1 to the number of available tasks, -f at most -l; -s must be at least 1",
            );
        }
        let Some((dirs, leaves)) =
            tree_size(options.branch_factor, options.depth).filter(|(dirs, _)| *dirs <= TREE_MAX)
        else {
            return invalid("-b and -z give a tree of more than a million directories");
        };
        let dirs_with_items = if options.leaf_only { leaves } else { dirs };
        let (items_per_dir, test_dir_count) = match (options.items, options.items_per_dir) {
            (0, per_dir) => (per_dir, 1),
            (items, 0) => (items / dirs_with_items, 1),
            (items, per_dir) => (per_dir, items / per_dir),
        };
        Ok(Plan {
            dirs,
            first_leaf: dirs - leaves,
            items_per_dir,
            test_dir_count,
            options,
        })
    }

    /// Number of items of one task in one tree.
    pub(crate) fn items_per_tree(&self) -> u64 {
        let dirs_with_items = match self.options.leaf_only {
            true => self.dirs - self.first_leaf,
            false => self.dirs,
        };
        self.items_per_dir * dirs_with_items
    }

    /// The numbers of tasks to run with.
    pub(crate) fn task_counts(&self, tasks: usize) -> Vec<usize> {
        let Some((first, last, step)) = self.options.task_counts else {
            return vec![tasks];
        };
        // As in mdtest, the counts after one task are multiples of the step.
        let second = if first == 1 && step > 1 {
            step
        } else {
            first + step
        };
        std::iter::once(first)
            .chain((second..=last).step_by(step))
            .collect()
    }

    /// The directories in depth-first order.
    pub(crate) fn dirs_depth_first(&self) -> Vec<u64> {
        let mut order = Vec::new();
        let mut pending = vec![0];
        while let Some(dir) = pending.pop() {
            order.push(dir);
            let first_child = dir * self.options.branch_factor + 1;
            let end = (first_child + self.options.branch_factor).min(self.dirs);
            pending.extend((first_child..end).rev());
        }
        order
    }

    /// The directories with items, in depth-first order.
    pub(crate) fn dirs_with_items(&self) -> Vec<u64> {
        let first = if self.options.leaf_only {
            self.first_leaf
        } else {
            0
        };
        self.dirs_depth_first()
            .into_iter()
            .filter(|d| *d >= first)
            .collect()
    }

    /// The directory and the number of the tree's item `i`, counted from 0. With `leaf_only`, the
    /// numbers start at the first leaf's items.
    pub(crate) fn item(&self, i: u64) -> (u64, u64) {
        let first = match self.options.leaf_only {
            true => self.first_leaf * self.items_per_dir,
            false => 0,
        };
        ((first + i) / self.items_per_dir.max(1), first + i)
    }

    /// The paths of a tree's directories, by number.
    pub(crate) fn tree(&self, test_dir: &str, owner: usize) -> Tree {
        let base = match self.options.unique_dir_per_task {
            true => format!("mdtest_tree.{owner}"),
            false => "mdtest_tree".to_owned(),
        };
        let mut paths: Vec<(String, String)> = vec![(test_dir.to_owned(), format!("{base}.0"))];
        for dir in 1..self.dirs {
            let above = (dir - 1) / self.options.branch_factor;
            let parent = paths.get(above as usize).map(|(p, n)| format!("{p}/{n}"));
            paths.push((parent.unwrap_or_default(), format!("{base}.{dir}")));
        }
        let full_paths = paths.iter().map(|(p, n)| format!("{p}/{n}")).collect();
        Tree { paths, full_paths }
    }

    /// The name of an item.
    pub(crate) fn name(&self, kind: ItemKind, owner: usize, item: u64) -> String {
        let kind = match kind {
            ItemKind::Dir => "dir",
            ItemKind::File => "file",
        };
        match self.options.shared_file {
            true => format!("{kind}.mdtest.shared.{item}"),
            false => format!("{kind}.mdtest.{owner}.{item}"),
        }
    }
}

/// The directories of one tree.
pub(crate) struct Tree {
    /// Parent and name of each directory.
    pub(crate) paths: Vec<(String, String)>,
    /// The whole path of each directory.
    full_paths: Vec<String>,
}

impl Tree {
    /// The path of a directory.
    pub(crate) fn dir(&self, number: u64) -> &str {
        self.full_paths.get(number as usize).map_or("", String::as_str)
    }
}

/// The number of directories of a tree, and how many of them are leaves; `None` above [`TREE_MAX`].
fn tree_size(branch_factor: u64, depth: u32) -> Option<(u64, u64)> {
    let mut level = 1u64;
    let mut dirs = 1u64;
    for _ in 0..depth {
        level = level.checked_mul(branch_factor)?;
        dirs = dirs.checked_add(level).filter(|d| *d <= TREE_MAX)?;
    }
    Some((dirs, level))
}

/// The name of a test directory; `round` is below [`Plan::test_dir_count`].
pub(crate) fn test_dir(iteration: usize, round: u64) -> String {
    format!("test-dir.{iteration}-{round}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{ItemKind, Options, Plan};

    fn plan(change: impl FnOnce(&mut Options)) -> Plan {
        let mut options = Options {
            items: 21,
            ..Options::default()
        };
        change(&mut options);
        Plan::new(&options, 4).unwrap()
    }

    #[test]
    fn tree_is_numbered_by_level_and_walked_depth_first() {
        let plan = plan(|options| (options.branch_factor, options.depth) = (2, 2));
        assert_eq!((plan.dirs, plan.items_per_dir, plan.items_per_tree()), (7, 3, 21));
        assert_eq!(plan.dirs_depth_first(), [0, 1, 3, 4, 2, 5, 6]);
        let tree = plan.tree("test-dir.0-0", 2);
        assert_eq!(tree.dir(0), "test-dir.0-0/mdtest_tree.0");
        assert_eq!(
            tree.dir(5),
            "test-dir.0-0/mdtest_tree.0/mdtest_tree.2/mdtest_tree.5"
        );
        assert_eq!((plan.item(0), plan.item(20)), ((0, 0), (6, 20)));
        assert_eq!(plan.name(ItemKind::File, 2, 5), "file.mdtest.2.5");
    }

    #[test]
    fn leaf_only_puts_items_in_leaves() {
        let plan = plan(|options| (options.branch_factor, options.depth, options.leaf_only) = (2, 2, true));
        assert_eq!((plan.items_per_dir, plan.items_per_tree()), (5, 20));
        assert_eq!(plan.dirs_with_items(), [3, 4, 5, 6]);
        assert_eq!((plan.item(0), plan.item(19)), ((3, 15), (6, 34)));
    }

    #[test]
    fn branch_factor_one_gives_a_chain() {
        let plan = plan(|options| {
            (options.branch_factor, options.depth, options.unique_dir_per_task) = (1, 2, true)
        });
        assert_eq!((plan.dirs, plan.items_per_dir), (3, 7));
        let path = plan.tree("t", 1).dir(2).to_owned();
        assert_eq!(path, "t/mdtest_tree.1.0/mdtest_tree.1.1/mdtest_tree.1.2");
    }

    #[test]
    fn items_and_items_per_dir_give_several_test_dirs() {
        let plan = plan(|options| (options.items, options.items_per_dir) = (21, 7));
        assert_eq!((plan.test_dir_count, plan.items_per_tree()), (3, 7));
    }

    #[test]
    fn task_counts_after_one_are_multiples_of_the_step() {
        let counts = |first, last, step| {
            let options = Options {
                items: 1,
                task_counts: Some((first, last, step)),
                ..Options::default()
            };
            Plan::new(&options, 8).unwrap().task_counts(8)
        };
        assert_eq!(counts(1, 8, 2), [1, 2, 4, 6, 8]);
        assert_eq!(counts(2, 4, 1), [2, 3, 4]);
    }

    #[test]
    fn invalid_options_are_errors() {
        let error_of = |change: fn(&mut Options)| {
            let mut options = Options {
                items: 10,
                ..Options::default()
            };
            change(&mut options);
            Plan::new(&options, 4).map(drop).unwrap_err().to_string()
        };
        assert!(error_of(|options| options.items = 0).contains("-n or -I"));
        assert!(error_of(|options| (options.branch_factor, options.depth) = (10, 9)).contains("a million"));
        assert!(error_of(|options| (options.write_bytes, options.make_node) = (1, true)).contains("-k"));
        assert!(error_of(|options| options.read_bytes = 1).contains("-e must not"));
        assert!(error_of(|options| options.task_counts = Some((1, 5, 1))).contains("numbers of tasks"));
    }
}
