//! Facts about the machine of a demonstration, as names and values for the page.

use rustix::system::uname;
use std::fs;
use std::path::Path;

/// CPUs, memory, kernel, file system of the stores, and load average before the run. `store` is the
/// stores' directory; `None`: the stores are in memory.
pub fn machine(store: Option<&Path>) -> Vec<(String, String)> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let kernel = uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    let store = match store {
        None => "in memory".to_owned(),
        Some(dir) => format!(
            "on disk, {}",
            file_system(&read("/proc/self/mountinfo"), dir)
                .unwrap_or_else(|| "on an unknown file system".to_owned())
        ),
    };
    let facts = [
        ("CPUs", cpus(&read("/proc/cpuinfo"))),
        ("memory", memory(&read("/proc/meminfo"))),
        (
            "kernel",
            format!(
                "{} {} {}",
                text(kernel.sysname()),
                text(kernel.release()),
                text(kernel.machine())
            ),
        ),
        ("store", store),
        (
            "load average before the run",
            read("/proc/loadavg")
                .split_whitespace()
                .next()
                .unwrap_or("unknown")
                .to_owned(),
        ),
    ];
    facts
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// The number of usable CPUs and their model.
fn cpus(cpuinfo: &str) -> String {
    let usable = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let model = (cpuinfo.lines())
        .find_map(|l| l.strip_prefix("model name"))
        .map(|l| l.trim_start_matches([' ', '\t', ':']).trim());
    match model {
        Some(model) => format!("{usable} × {model}"),
        None => usable.to_string(),
    }
}

fn memory(meminfo: &str) -> String {
    let kib = (meminfo.lines())
        .find_map(|l| l.strip_prefix("MemTotal:"))
        .and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok());
    kib.map_or("unknown".to_owned(), |kib| {
        format!("{:.1} GiB", kib / f64::from(1 << 20))
    })
}

/// Type and device of the file system of a directory: the one at the mount point with the longest
/// matching path.
fn file_system(mountinfo: &str, dir: &Path) -> Option<String> {
    let mounts = mountinfo.lines().filter_map(|line| {
        // A dash separates the mount's fields from the file system's, because the number of
        // optional fields varies.
        let (mount, file_system) = line.split_once(" - ")?;
        let (mut mount, mut file_system) = (mount.split(' '), file_system.split(' '));
        Some((mount.nth(4)?, file_system.next()?, file_system.next()?))
    });
    let mounts_above = mounts.filter(|(mountpoint, ..)| dir.starts_with(mountpoint));
    // The last of several mounts on one mount point hides the others; max_by_key returns the last.
    let (_, kind, device) = mounts_above.max_by_key(|(mountpoint, ..)| mountpoint.len())?;
    Some(format!("{kind} on {device}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 21 0:25 / /run rw shared:5 master:2 - tmpfs tmpfs rw
31 21 7:0 / /srv/data rw - xfs /dev/loop0 rw
32 21 7:1 / /srv/data rw - ext4 /dev/loop1 rw
bad line
";

    #[test]
    fn directory_belongs_to_the_nearest_mount() {
        let file_system_of = |dir: &str| file_system(MOUNTS, Path::new(dir));
        assert_eq!(
            file_system_of("/srv/data/x").as_deref(),
            Some("ext4 on /dev/loop1")
        );
        assert_eq!(
            file_system_of("/srv/database").as_deref(),
            Some("ext4 on /dev/vda")
        );
        assert_eq!(file_system_of("/run").as_deref(), Some("tmpfs on tmpfs"));
        assert_eq!(file_system("", Path::new("/")), None);
    }

    #[test]
    fn cpuinfo_and_meminfo_parse() {
        assert!(cpus("processor\t: 0\nmodel name\t: An EPYC : 7\n").ends_with(" × An EPYC : 7"));
        assert!(cpus("").parse::<usize>().is_ok());
        assert_eq!(memory("MemFree: 1 kB\nMemTotal:       24576000 kB\n"), "23.4 GiB");
        assert_eq!(memory("nothing"), "unknown");
    }

    #[test]
    fn facts_of_this_machine_are_complete() {
        let facts = machine(Some(Path::new("/")));
        assert!(
            facts
                .iter()
                .all(|(name, value)| !name.is_empty() && !value.is_empty())
        );
        assert_eq!(machine(None)[3].1, "in memory");
    }
}
