//! Limits the CPU time of other processes by control groups, version 1 or 2, so that these
//! processes, and not the load generator, limit a measurement.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

/// The kernel gives a group its share of each period. A short one stops a process only briefly.
const PERIOD_US: u32 = 10_000;
/// The smallest share of a period that the kernel accepts.
const QUOTA_MIN_US: u32 = 1_000;
/// The smallest limit, in CPUs.
pub const CAP_MIN: f64 = QUOTA_MIN_US as f64 / PERIOD_US as f64;
/// The beginning of a group's name, before the process id of its creator.
const PREFIX: &str = "nacre-bench-";
/// Attempts to remove a group whose last process has just ended.
const REMOVALS_MAX: u32 = 50;

/// The number of the next group of this process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A control group with a limit of CPU time; removed on drop, after its processes have ended.
#[derive(Debug)]
pub struct CpuCap {
    dir: PathBuf,
}

/// The hierarchy with the CPU controller.
#[derive(Debug, PartialEq)]
enum Hierarchy {
    /// Version 1: the mount point, and the group of this process.
    V1(PathBuf, PathBuf),
    /// Version 2.
    V2(PathBuf, PathBuf),
}

impl CpuCap {
    /// Creates a group that may use this many CPUs, such as 0.1.
    ///
    /// # Errors
    ///
    /// There is no CPU controller, or this user may not create groups.
    pub fn new(cpus: f64) -> io::Result<CpuCap> {
        let (mounts, groups) = (
            fs::read_to_string("/proc/self/mountinfo")?,
            fs::read_to_string("/proc/self/cgroup")?,
        );
        let hierarchy = hierarchy(&mounts, &groups).ok_or_else(|| {
            io::Error::other("no control groups for CPU time (cgroup or cgroup2) are mounted")
        })?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        let quota = ((cpus * f64::from(PERIOD_US)) as u32).max(QUOTA_MIN_US);
        remove_abandoned(&hierarchy.parent());
        let cap = CpuCap {
            dir: hierarchy.parent().join(name),
        };
        if let Hierarchy::V2(..) = hierarchy {
            // The groups of the parent may have the controller already; then the write may fail.
            let _ = fs::write(hierarchy.parent().join("cgroup.subtree_control"), "+cpu");
        }
        let failed = |e: io::Error| io::Error::other(format!("{}: {e}", cap.dir.display()));
        fs::create_dir(&cap.dir).map_err(failed)?;
        let values = match hierarchy {
            Hierarchy::V1(..) => vec![
                ("cpu.cfs_period_us", PERIOD_US.to_string()),
                ("cpu.cfs_quota_us", quota.to_string()),
            ],
            Hierarchy::V2(..) => vec![("cpu.max", format!("{quota} {PERIOD_US}"))],
        };
        for (file, value) in values {
            write_existing(&cap.dir.join(file), &value).map_err(failed)?;
        }
        Ok(cap)
    }

    /// Moves a process into the group, with all its threads.
    ///
    /// # Errors
    ///
    /// The process has ended, or this user may not move it.
    pub fn add(&self, pid: u32) -> io::Result<()> {
        write_existing(&self.dir.join("cgroup.procs"), &pid.to_string())
    }
}

impl Drop for CpuCap {
    fn drop(&mut self) {
        for _ in 0..REMOVALS_MAX {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            sleep(Duration::from_millis(10));
        }
    }
}

/// Removes the groups of benchmarks that were killed. A group with processes stays.
fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let creator = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        if creator.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Writes to a file of the kernel. Creates none: without the controller, the directory is an
/// ordinary one.
fn write_existing(path: &Path, value: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(path)?;
    io::Write::write_all(&mut file, value.as_bytes())
}

impl Hierarchy {
    /// The group in which new groups are created. In version 2, a group with processes cannot also
    /// have groups with controllers, so new groups are beside that of this process.
    fn parent(&self) -> PathBuf {
        match self {
            Hierarchy::V1(mount, own) => mount.join(own),
            Hierarchy::V2(mount, own) => mount.join(own.parent().unwrap_or(Path::new(""))),
        }
    }
}

/// The hierarchy with the CPU controller, from `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn hierarchy(mounts: &str, groups: &str) -> Option<Hierarchy> {
    let mounted = |kind: &str, option: Option<&str>| {
        mounts.lines().find_map(|line| {
            let (mount, filesystem) = line.split_once(" - ")?;
            let mut fields = filesystem.split(' ');
            let has_kind = fields.next() == Some(kind);
            let has_option = option.is_none_or(|option| {
                let options = fields.next_back().unwrap_or_default();
                options.split(',').any(|o| o == option)
            });
            (has_kind && has_option).then(|| PathBuf::from(mount.split(' ').nth(4).unwrap_or_default()))
        })
    };
    let own = |controller: &str| {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let has_controller = fields.next()?.split(',').any(|c| c == controller);
            let path = fields.next()?.trim_start_matches('/');
            has_controller.then(|| PathBuf::from(path))
        })
    };
    if let (Some(mount), Some(own)) = (mounted("cgroup", Some("cpu")), own("cpu")) {
        return Some(Hierarchy::V1(mount, own));
    }
    Some(Hierarchy::V2(mounted("cgroup2", None)?, own("")?))
}

#[cfg(test)]
mod tests {
    use super::{Hierarchy, hierarchy};

    #[test]
    fn the_hierarchy_with_the_cpu_controller_is_found() {
        let v1 = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
                  33 31 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let groups = "2:cpu,cpuacct:/user/7\n0::/user.slice\n";
        let found = hierarchy(v1, groups).map(|h| h.parent());
        assert_eq!(found, Some("/sys/fs/cgroup/cpu,cpuacct/user/7".into()));

        let v2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = hierarchy(v2, "0::/user.slice/session-1.scope\n");
        assert_eq!(
            found.as_ref().map(Hierarchy::parent),
            Some("/sys/fs/cgroup/user.slice".into())
        );
        assert_eq!(hierarchy("21 1 8:1 / / rw - ext4 /dev/sda1 rw\n", groups), None);
        assert_eq!(
            hierarchy(v2, "0::/\n").map(|h| h.parent()),
            Some("/sys/fs/cgroup/".into())
        );
    }
}
