//! What happens to a file system while people work on it, and what must be there afterwards.

use crate::file_system::{FileSystem, Shape, text};
use crate::fixture::sh;

/// Where a workload works.
pub(crate) struct Place {
    /// A directory in the mount.
    pub(crate) dir: String,
    /// A directory outside of it, where it keeps what it compares with.
    pub(crate) aside: String,
}

/// Work of one kind, in steps.
pub(crate) struct Workload {
    /// Brings data in.
    pub(crate) put: fn(&Place),
    /// Works with data that came through a restart.
    pub(crate) change: fn(&Place),
    /// Fails unless all that was put and changed is there, whole and usable.
    pub(crate) check: fn(&Place),
}

/// Lives through a stop and a start, and through `sync` and a kill of everything.
pub(crate) fn live(shape: Shape, workload: &Workload) {
    let mut fs = FileSystem::new(shape);
    let place = Place {
        dir: text(&fs.mount().join("work")).to_owned(),
        aside: fs.site.at("aside"),
    };
    sh(&format!("mkdir {} {}", place.dir, place.aside));
    (workload.put)(&place);
    (workload.check)(&place);
    fs.stop();
    fs.start();
    (workload.check)(&place);
    (workload.change)(&place);
    sh(&format!("sync -f {}", place.dir));
    fs.kill();
    fs.start();
    (workload.check)(&place);
    fs.stop();
    fs.is_consistent();
}
