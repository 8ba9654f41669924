//! The amount of memory that this process may use: the machine's memory, limited by control groups
//! (version 1 or 2) and by the process's resource limits. Every default that grows with memory is a
//! share of this amount.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rustix::process::{Resource, getrlimit};

/// Mount point of the control groups.
const CGROUPS: &str = "/sys/fs/cgroup";
/// Bytes of memory to assume if the system reports neither its memory nor a limit.
const DEFAULT_BYTES: u64 = 4 << 30;

/// Bytes of memory that this process may use.
pub fn memory_bytes() -> u64 {
    let limits = [Resource::As, Resource::Data].map(|r| getrlimit(r).current);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    [machine_memory(), cgroup_limit(Path::new(CGROUPS), &groups)]
        .into_iter()
        .chain(limits)
        .flatten()
        .min()
        .unwrap_or(DEFAULT_BYTES)
}

/// Bytes of the machine's memory; `None` if `/proc/meminfo` does not state them.
fn machine_memory() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let total = info.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib << 10)
}

/// The smallest limit of the process's control groups and of their ancestors; `groups` is the
/// content of `/proc/self/cgroup`.
fn cgroup_limit(mounted: &Path, groups: &str) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let (root, file) = match controllers {
            "" => (mounted.to_owned(), "memory.max"),
            c if c.split(',').any(|c| c == "memory") => (mounted.join("memory"), "memory.limit_in_bytes"),
            _ => return None,
        };
        least_limit_of_ancestors(&root, path, file)
    });
    limits.min()
}

/// The smallest number in `file` of the directory `path` below `root` and of its ancestors up to
/// `root`.
fn least_limit_of_ancestors(root: &Path, path: &str, file: &str) -> Option<u64> {
    let mut dir: PathBuf = root.join(path.trim_start_matches('/'));
    let mut least = None;
    loop {
        // "max" means no limit and does not parse as a number.
        let limit = fs::read_to_string(dir.join(file))
            .ok()
            .and_then(|text| text.trim().parse::<u64>().ok());
        least = match (least, limit) {
            (Some(a), Some(b)) => Some(std::cmp::min::<u64>(a, b)),
            (a, b) => a.or(b),
        };
        if dir == root || !dir.pop() {
            return least;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_smallest_limit_of_a_group_and_its_ancestors_counts() {
        let root = tempfile::tempdir().unwrap();
        let put = |dir: &str, file: &str, text: &str| {
            fs::create_dir_all(root.path().join(dir)).unwrap();
            fs::write(root.path().join(dir).join(file), text).unwrap();
        };
        put("a/b", "memory.max", "max\n");
        put("a", "memory.max", "1000000\n");
        assert_eq!(cgroup_limit(root.path(), "0::/a/b\n"), Some(1_000_000));
        assert_eq!(cgroup_limit(root.path(), "0::/c\n"), None);
        put("memory/x", "memory.limit_in_bytes", "500\n");
        put("memory", "memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(
            cgroup_limit(root.path(), "4:cpu:/x\n3:memory:/x\n0::/\n"),
            Some(500)
        );
    }

    #[test]
    fn this_process_has_some_memory() {
        assert!(memory_bytes() > 16 << 20);
    }
}
