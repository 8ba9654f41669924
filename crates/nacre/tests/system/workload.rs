//! The life of a file system under a workload: restarts and kills, with checks of the data.

use crate::file_system::{FileSystem, Shape, text};
use crate::fixture::sh;

/// The directories of a workload.
pub(crate) struct WorkDirs {
    /// A directory in the mount.
    pub(crate) dir: String,
    /// A directory outside the mount for reference data.
    pub(crate) aside: String,
}

/// The steps of a workload.
pub(crate) struct Workload {
    /// Creates data.
    pub(crate) create: fn(&WorkDirs),
    /// Changes data after a restart.
    pub(crate) change: fn(&WorkDirs),
    /// Fails unless all data of `create` and `change` is present and usable.
    pub(crate) check: fn(&WorkDirs),
}

/// Runs a workload through a clean restart, and through `sync`, a kill of all processes and another
/// restart.
pub(crate) fn run_workload(shape: Shape, workload: &Workload) {
    let mut fs = FileSystem::new(shape);
    let dirs = WorkDirs {
        dir: text(&fs.mount_point().join("work")).to_owned(),
        aside: fs.site.path_str("aside"),
    };
    sh(&format!("mkdir {} {}", dirs.dir, dirs.aside));
    (workload.create)(&dirs);
    (workload.check)(&dirs);
    fs.stop();
    fs.start();
    (workload.check)(&dirs);
    (workload.change)(&dirs);
    sh(&format!("sync -f {}", dirs.dir));
    fs.kill();
    fs.start();
    (workload.check)(&dirs);
    fs.stop();
    fs.check_consistency();
}
