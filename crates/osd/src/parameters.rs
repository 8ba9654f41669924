//! Parameters of a target's space, under Lustre's names: `osd-local.testfs-OST0000.*`,
//! `osd-memory.*`.

use std::sync::Arc;

use params::{Group, Param, Registry};

use crate::{Space, StatFs};

/// Maximum value of `reserved_mb` and `size_mb`, MiB.
const MIB_MAX: u64 = 1 << 30;

fn kib(blocks: u64, s: &StatFs) -> u64 {
    (blocks * u64::from(s.bsize)) >> 10
}

impl Space {
    /// Registers the parameters of the target's space; they exist as long as the group lives.
    pub fn register_params(self: &Arc<Self>, registry: &Registry, svname: &str) -> Group {
        let kind = if self.size_bytes().is_some() {
            "memory"
        } else {
            "local"
        };
        let mut group = registry.group(format!("osd-{kind}.{svname}"));
        let mut add = |name: &str, show: fn(&StatFs) -> u64, about| {
            let space = self.clone();
            let shown = move || show(&space.statfs().unwrap_or_default());
            group.add(name, Param::gauge(shown).about(about));
        };
        add("blocksize", |s| s.bsize.into(), "block size, bytes");
        add("kbytestotal", |s| kib(s.blocks, s), "total space, KiB");
        add("kbytesfree", |s| kib(s.bfree, s), "free space, KiB");
        add(
            "kbytesavail",
            |s| kib(s.bavail, s),
            "free space without the reserve, KiB",
        );
        add("filestotal", |s| s.files, "total inodes; 0: not counted");
        add("filesfree", |s| s.ffree, "free inodes without the reserve");
        let space = self.clone();
        group.add(
            "store_failure",
            Param::read_only(move || space.failure().to_owned()).about(
                "the failure after which the store refuses changes until the target's restart; empty: none",
            ),
        );
        let space = self.clone();
        group.add(
            "disk_error",
            Param::read_only(move || space.disk_error().to_owned()).about(
                "the first error of the disk since the target's start, after which new files avoid the target; empty: none",
            ),
        );
        let mib = |get: fn(&Space) -> u64, set: fn(&Space, u64)| {
            let (shown, setter) = (self.clone(), self.clone());
            Param::read_write(
                move || (get(&shown) >> 20).to_string(),
                move |text| {
                    let n = text.trim().parse().ok().filter(|n| *n <= MIB_MAX);
                    let n: u64 = n.ok_or_else(|| format!("expected a whole number up to {MIB_MAX}"))?;
                    set(&setter, n << 20);
                    Ok(())
                },
            )
        };
        let reserved = mib(Space::reserved_bytes, Space::set_reserved_bytes);
        group.add(
            "reserved_mb",
            reserved.about("space kept free for removes, changes and commits, MiB"),
        );
        if self.size_bytes().is_some() {
            let size = mib(
                |s| s.size_bytes().unwrap_or_default(),
                |s, bytes| {
                    s.set_size_bytes(bytes);
                },
            );
            group.add("size_mb", size.about("maximum memory use, MiB"));
        }
        group
    }
}
