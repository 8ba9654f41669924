//! The user that may run servers on this host besides root: the owner of [`SERVERS_RUN_DIR`], the
//! run directory of the packaged units. Only root can create a directory in `/run`, and only root
//! can change a directory's owner, so the owner proves that root has chosen this user.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The run directory of servers that run as a user of their own (`packaging/systemd`).
pub const SERVERS_RUN_DIR: &str = "/run/nacre-target";
/// The kernel's id for all users outside of this process's user namespace.
pub(crate) const UNMAPPED_UID: u32 = 65534;

/// The id of this user; `None` if the directory is missing, or if its owner is outside of this
/// process's user namespace.
pub fn servers_user() -> Option<u32> {
    owner_of_dir(Path::new(SERVERS_RUN_DIR)).and_then(single_user)
}

/// The owner of a directory; `None` if `path` is missing, a symbolic link, or another kind of file.
fn owner_of_dir(path: &Path) -> Option<u32> {
    let meta = fs::symlink_metadata(path).ok()?;
    meta.is_dir().then(|| meta.uid())
}

/// `uid`; `None` if it is the kernel's id for all unmapped users.
fn single_user(uid: u32) -> Option<u32> {
    (uid != UNMAPPED_UID).then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::{UNMAPPED_UID, owner_of_dir, single_user};
    use rustix::process::geteuid;
    use std::path::Path;

    #[test]
    fn only_a_directory_names_the_user() {
        assert_eq!(owner_of_dir(Path::new("/proc/self")), None, "a symbolic link");
        assert_eq!(owner_of_dir(Path::new("/proc/self/")), Some(geteuid().as_raw()));
        assert_eq!(owner_of_dir(Path::new("/dev/null")), None);
        assert_eq!(owner_of_dir(Path::new("/no/such/directory")), None);
    }

    #[test]
    fn users_outside_of_the_user_namespace_run_no_servers() {
        assert_eq!(single_user(101), Some(101));
        assert_eq!(single_user(UNMAPPED_UID), None);
    }
}
