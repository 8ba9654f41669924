//! What is asked for, and where the files of each task are: mdtest's tree of directories and its names.
//!
//! A tree has the depth `-z` and the branching factor `-b`; its directories are numbered from the root on, level by
//! level, and directory k has the items from k times the items of a directory on. In depth order they are created and
//! removed, in the order of their numbers (or at random) looked at.

use crate::BenchError;
use std::path::PathBuf;
use std::time::Duration;

/// Directories that a tree may have.
const TREE_MAX: u64 = 1 << 20;
/// Items of one task.
const ITEMS_MAX: u64 = 1 << 40;

/// mdtest's options, by their letters.
#[derive(Clone, Debug)]
pub struct Options {
    /// `-d`: directories, one for each task in turn; they may be one that is seen through several mounts.
    pub dir_count: usize,
    /// `-n`: items of each task.
    pub items: u64,
    /// `-I`: items of each task in each directory.
    pub items_per_dir: u64,
    /// `-i`: how often everything is done.
    pub iterations: usize,
    /// `--seconds`: for how long everything is done again (not mdtest's); in place of `iterations`.
    pub duration: Option<Duration>,
    /// `-b`: directories in a directory of the tree.
    pub branch_factor: u64,
    /// `-z`: levels of directories below the tree's root.
    pub depth: u32,
    /// `-L`: items are only in the lowest directories.
    pub leaf_only: bool,
    /// `-u`: each task has a tree of its own.
    pub unique_dir_per_task: bool,
    /// `-t`: finding that tree counts.
    pub time_unique_dir_overhead: bool,
    /// `-D`: the items are directories.
    pub dirs_only: bool,
    /// `-F`: the items are files.
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
    /// `-w`: bytes that are written into each file.
    pub write_bytes: usize,
    /// `-e`: bytes that are read from each file.
    pub read_bytes: usize,
    /// `-y`: each file is synced after it was written.
    pub sync_file: bool,
    /// `-Y`: the file system is synced at the end of each phase, which counts.
    pub call_sync: bool,
    /// `-X`: every byte that is read is compared.
    pub verify_read: bool,
    /// `--verify-write`: what was written is read again at once.
    pub verify_write: bool,
    /// `-k`: files are made by mknod.
    pub make_node: bool,
    /// `-c`: task 0 creates and removes for all.
    pub collective_creates: bool,
    /// `-S`: all tasks use the same files.
    pub shared_file: bool,
    /// `-N`: each phase works on the items of the task this far away from the one before.
    pub stride: usize,
    /// `-R`: stat and read in random order, chosen by this number.
    pub random_seed: Option<u64>,
    /// `-W`: files are created for so long; then all go on until they have as many as the fastest.
    pub stonewall: Option<Duration>,
    /// `-x`: where the number of files that a stonewall left is kept.
    pub stonewall_file: Option<PathBuf>,
    /// `-p`: pause before each test.
    pub pre_delay: Duration,
    /// `-f`, `-l`, `-s`: with how many tasks: from, to, in steps of.
    pub task_counts: Option<(usize, usize, usize)>,
    /// `--stripes`: how many stripes new files get (not mdtest's); with 0 they get their objects later.
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

/// What is made, looked at and removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Dir,
    File,
}

/// Options that fit together, and what follows from them.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) options: Options,
    /// Directories of one tree.
    pub(crate) dirs: u64,
    /// The first of the lowest.
    pub(super) first_leaf: u64,
    /// Items of a task in one directory.
    pub(crate) items_per_dir: u64,
    /// Trees of a task, one after the other.
    pub(crate) loops: u64,
}

impl Plan {
    /// Checks what the options say together, as mdtest does.
    pub(crate) fn new(options: &Options, tasks: usize) -> Result<Plan, BenchError> {
        let mut o = options.clone();
        let none = !(o.create_only || o.stat_only || o.read_only || o.rename_only || o.remove_only);
        if none {
            (o.create_only, o.stat_only, o.read_only) = (true, true, true);
            (o.rename_only, o.remove_only) = (true, true);
        }
        if !o.dirs_only && !o.files_only {
            (o.dirs_only, o.files_only) = (true, true);
        }
        o.dirs_only &= !o.shared_file;
        let wrong = |why: &str| Err(BenchError::Options(why.to_owned()));
        match () {
            () if o.items == 0 && o.items_per_dir == 0 => {
                return wrong("how many files and directories? Say it with -n or -I");
            }
            () if o.items.max(o.items_per_dir) > ITEMS_MAX => return wrong("-n or -I is too large"),
            () if o.iterations == 0 => return wrong("-i 0: nothing would be done"),
            () if o.duration.is_some() && o.create_only && !o.remove_only => {
                return wrong("--seconds needs a run that removes what it makes (-r beside -C)");
            }
            () if o.branch_factor == 0 && o.depth > 0 => {
                return wrong("-z needs a branching factor: -b 1 or more");
            }
            () if o.stonewall.is_some() && (o.branch_factor > 1 || o.depth > 0) => {
                return wrong("-W does not go together with a tree (-b, -z)");
            }
            () if o.shared_file && o.collective_creates => return wrong("-S does not go together with -c"),
            () if o.shared_file && o.unique_dir_per_task => return wrong("-S does not go together with -u"),
            () if o.write_bytes > 0 && o.make_node => return wrong("-k does not go together with -w"),
            () if o.verify_read && !(o.read_only && o.read_bytes > 0) => {
                return wrong("-X needs something to read: -e BYTES, and -E when single phases are chosen");
            }
            () if o.create_only && o.read_only && o.read_bytes > o.write_bytes => {
                return wrong("-e must not be more than -w");
            }
            () if o.items > 0 && o.items_per_dir > 0 && o.unique_dir_per_task => {
                return wrong("with -u, say only one of -n and -I");
            }
            () if o.items > 0 && o.items_per_dir > 0 && !o.items.is_multiple_of(o.items_per_dir) => {
                return wrong("-n must be a multiple of -I");
            }
            () if o.stonewall.is_some() && o.items > 0 && o.items_per_dir > 0 => {
                return wrong("-W needs -n alone");
            }
            () => {}
        }
        if let Some((first, last, step)) = o.task_counts
            && (first == 0 || last < first || last > tasks || step == 0)
        {
            return wrong("-f, -l and -s must choose numbers of tasks from 1 to those that there are");
        }
        let Some((dirs, leaves)) = tree(o.branch_factor, o.depth).filter(|(dirs, _)| *dirs <= TREE_MAX)
        else {
            return wrong("-b and -z make a tree of more than a million directories");
        };
        let with_items = if o.leaf_only { leaves } else { dirs };
        let (items_per_dir, loops) = match (o.items, o.items_per_dir) {
            (0, per_dir) => (per_dir, 1),
            (items, 0) => (items / with_items, 1),
            (items, per_dir) => (per_dir, items / per_dir),
        };
        Ok(Plan {
            dirs,
            first_leaf: dirs - leaves,
            items_per_dir,
            loops,
            options: o,
        })
    }

    /// Items of one task in one tree.
    pub(crate) fn items_per_tree(&self) -> u64 {
        let with_items = match self.options.leaf_only {
            true => self.dirs - self.first_leaf,
            false => self.dirs,
        };
        self.items_per_dir * with_items
    }

    /// The numbers of tasks that it is run with.
    pub(crate) fn task_counts(&self, tasks: usize) -> Vec<usize> {
        let Some((first, last, step)) = self.options.task_counts else {
            return vec![tasks];
        };
        // After one task come the multiples of the step.
        let second = if first == 1 && step > 1 {
            step
        } else {
            first + step
        };
        std::iter::once(first)
            .chain((second..=last).step_by(step))
            .collect()
    }

    /// The directories in depth order.
    pub(crate) fn in_depth_order(&self) -> Vec<u64> {
        let mut order = Vec::new();
        let mut next = vec![0];
        while let Some(dir) = next.pop() {
            order.push(dir);
            let children = dir * self.options.branch_factor + 1;
            let end = (children + self.options.branch_factor).min(self.dirs);
            next.extend((children..end).rev());
        }
        order
    }

    /// The directories that have items, in depth order.
    pub(crate) fn with_items(&self) -> Vec<u64> {
        let first = if self.options.leaf_only {
            self.first_leaf
        } else {
            0
        };
        self.in_depth_order()
            .into_iter()
            .filter(|d| *d >= first)
            .collect()
    }

    /// The directory of an item, and its number, of those that are looked at in order of their numbers.
    pub(crate) fn item(&self, i: u64) -> (u64, u64) {
        let first = match self.options.leaf_only {
            true => self.first_leaf * self.items_per_dir,
            false => 0,
        };
        ((first + i) / self.items_per_dir.max(1), first + i)
    }

    /// The paths of a tree's directories, by number: below the test directory, each in the one above it.
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
        let whole = paths.iter().map(|(p, n)| format!("{p}/{n}")).collect();
        Tree { paths, whole }
    }

    /// The name of an item.
    pub(crate) fn name(&self, kind: Kind, owner: usize, item: u64) -> String {
        let kind = match kind {
            Kind::Dir => "dir",
            Kind::File => "file",
        };
        match self.options.shared_file {
            true => format!("{kind}.mdtest.shared.{item}"),
            false => format!("{kind}.mdtest.{owner}.{item}"),
        }
    }
}

/// The directories of one tree.
pub(crate) struct Tree {
    /// Where each is, and its name there.
    pub(crate) paths: Vec<(String, String)>,
    whole: Vec<String>,
}

impl Tree {
    /// The path of a directory.
    pub(crate) fn dir(&self, number: u64) -> &str {
        self.whole.get(number as usize).map_or("", String::as_str)
    }
}

/// How many directories a tree has, and how many of them are lowest.
fn tree(branch_factor: u64, depth: u32) -> Option<(u64, u64)> {
    let mut level = 1u64;
    let mut dirs = 1u64;
    for _ in 0..depth {
        level = level.checked_mul(branch_factor)?;
        dirs = dirs.checked_add(level).filter(|d| *d <= TREE_MAX)?;
    }
    Some((dirs, level))
}

/// The name of a repetition's test directory.
pub(crate) fn test_dir(iteration: usize, round: u64) -> String {
    format!("test-dir.{iteration}-{round}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Kind, Options, Plan};

    fn plan(change: impl FnOnce(&mut Options)) -> Plan {
        let mut options = Options {
            items: 21,
            ..Options::default()
        };
        change(&mut options);
        Plan::new(&options, 4).unwrap()
    }

    #[test]
    fn a_tree_is_numbered_by_levels_and_walked_in_depth() {
        let plan = plan(|o| (o.branch_factor, o.depth) = (2, 2));
        assert_eq!((plan.dirs, plan.items_per_dir, plan.items_per_tree()), (7, 3, 21));
        assert_eq!(plan.in_depth_order(), [0, 1, 3, 4, 2, 5, 6]);
        let tree = plan.tree("test-dir.0-0", 2);
        assert_eq!(tree.dir(0), "test-dir.0-0/mdtest_tree.0");
        assert_eq!(
            tree.dir(5),
            "test-dir.0-0/mdtest_tree.0/mdtest_tree.2/mdtest_tree.5"
        );
        assert_eq!((plan.item(0), plan.item(20)), ((0, 0), (6, 20)));
        assert_eq!(plan.name(Kind::File, 2, 5), "file.mdtest.2.5");
    }

    #[test]
    fn only_the_lowest_directories_have_items_with_leaf_only() {
        let plan = plan(|o| (o.branch_factor, o.depth, o.leaf_only) = (2, 2, true));
        assert_eq!((plan.items_per_dir, plan.items_per_tree()), (5, 20));
        assert_eq!(plan.with_items(), [3, 4, 5, 6]);
        assert_eq!((plan.item(0), plan.item(19)), ((3, 15), (6, 34)));
    }

    #[test]
    fn a_chain_of_directories_has_one_below_the_other() {
        let plan = plan(|o| (o.branch_factor, o.depth, o.unique_dir_per_task) = (1, 2, true));
        assert_eq!((plan.dirs, plan.items_per_dir), (3, 7));
        let path = plan.tree("t", 1).dir(2).to_owned();
        assert_eq!(path, "t/mdtest_tree.1.0/mdtest_tree.1.1/mdtest_tree.1.2");
    }

    #[test]
    fn items_of_a_directory_and_of_a_task_make_several_trees() {
        let plan = plan(|o| (o.items, o.items_per_dir) = (21, 7));
        assert_eq!((plan.loops, plan.items_per_tree()), (3, 7));
        let counts = |first, last, step| {
            let o = Options {
                items: 1,
                task_counts: Some((first, last, step)),
                ..Options::default()
            };
            Plan::new(&o, 8).unwrap().task_counts(8)
        };
        assert_eq!(counts(1, 8, 2), [1, 2, 4, 6, 8]);
        assert_eq!(counts(2, 4, 1), [2, 3, 4]);
    }

    #[test]
    fn what_cannot_be_is_said() {
        let refused = |change: fn(&mut Options)| {
            let mut options = Options {
                items: 10,
                ..Options::default()
            };
            change(&mut options);
            Plan::new(&options, 4).map(drop).unwrap_err().to_string()
        };
        assert!(refused(|o| o.items = 0).contains("-n or -I"));
        assert!(refused(|o| (o.branch_factor, o.depth) = (10, 9)).contains("a million"));
        assert!(refused(|o| (o.write_bytes, o.make_node) = (1, true)).contains("-k"));
        assert!(refused(|o| o.read_bytes = 1).contains("-e must not"));
        assert!(refused(|o| o.task_counts = Some((1, 5, 1))).contains("numbers of tasks"));
    }
}
