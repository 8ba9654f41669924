//! Little memory: cache sizes follow the available memory, and the kernel kills no process.

use std::fs;
use std::path::{Path, PathBuf};

use crate::fixture::{Site, sh};

/// Memory limit of the group in bytes.
const MEMORY_LIMIT: u64 = 256 << 20;

/// A control group with little memory, removed on drop.
struct Group(PathBuf);

impl Group {
    /// `None` if the system has no usable memory controller.
    fn new() -> Option<Group> {
        let limits = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        limits.into_iter().find_map(|(root, limit)| {
            let group = Group(Path::new(root).join(format!("nacre-test-{}", std::process::id())));
            fs::create_dir(&group.0).ok()?;
            fs::write(group.0.join(limit), MEMORY_LIMIT.to_string()).ok()?;
            Some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn large_workload_fits_into_little_memory() {
    let Some(group) = Group::new() else {
        eprintln!("!!! NOT TESTED: little memory (cannot create a memory control group here)");
        return;
    };
    let mut site = Site::new();
    let enter = format!("echo $$ > {}/cgroup.procs", group.0.display());
    let mount = site.up_after(&enter, "d", "--osts 2");
    let source = site.path_str("source");
    sh(&format!("head -c 300M /dev/urandom > {source}"));
    for copy in ["a", "b"] {
        sh(&format!("cp {source} {mount}/{copy}"));
    }
    sh(&format!("cmp {source} {mount}/a; cmp {source} {mount}/b"));
    let files = 20_000;
    sh(&format!(
        "mkdir {mount}/many; cd {mount}/many; seq {files} | xargs touch"
    ));
    let count = sh(&format!(
        "cd {mount}/many; ls -f | grep -c '[0-9]'; rm -r {mount}/many"
    ));
    assert_eq!(count.trim(), files.to_string());
    sh(&format!("cmp {source} {mount}/a; rm {mount}/a {mount}/b"));
    site.down("d");
}
