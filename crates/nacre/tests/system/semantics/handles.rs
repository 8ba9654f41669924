//! File handles (`name_to_handle_at`, `open_by_handle_at`), as used by NFS servers.

use std::path::Path;

use crate::file_system::text;
use crate::fixture::{nacre_ok, sh};
use crate::semantics::two_mounts::TwoMounts;

/// `handles.py save DIR STORE PATH..` stores handles of paths. `handles.py open DIR STORE PATH`
/// opens a handle and prints the path of a directory or the contents of a file; on failure, the
/// name of the error.
const HANDLES_SCRIPT: &str = r#"
import ctypes, errno, os, pickle, stat, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_char * 128)]
action, top, store = sys.argv[1:4]
top = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
if action == "save":
    saved = {}
    for path in sys.argv[4:]:
        handle, mount = Handle(bytes=128), ctypes.c_int()
        if libc.name_to_handle_at(top, path.encode(), ctypes.byref(handle), ctypes.byref(mount), 0) != 0:
            sys.exit(path + ": " + errno.errorcode[ctypes.get_errno()])
        saved[path] = bytes(handle)
    pickle.dump(saved, open(store, "wb"))
else:
    handle = Handle.from_buffer_copy(pickle.load(open(store, "rb"))[sys.argv[4]])
    fd = libc.open_by_handle_at(top, ctypes.byref(handle), os.O_RDONLY)
    if fd < 0:
        print(errno.errorcode[ctypes.get_errno()])
    elif stat.S_ISDIR(os.fstat(fd).st_mode):
        print(os.readlink("/proc/self/fd/%d" % fd), os.path.basename(os.readlink("/proc/self/fd/%d" % os.open("..", os.O_RDONLY, dir_fd=fd))))
    else:
        print(os.read(fd, 100).decode())
"#;

/// Stored handles of files.
struct Handles<'a> {
    env: &'a TwoMounts,
    script: String,
    store: String,
}

impl Handles<'_> {
    /// Stores handles of `paths` below `dir`.
    fn of<'a>(env: &'a TwoMounts, dir: &Path, paths: &[&str]) -> Handles<'a> {
        let handles = Handles {
            env,
            script: env.fs.site.path_str("handles.py"),
            store: env.fs.site.path_str("handles"),
        };
        std::fs::write(&handles.script, HANDLES_SCRIPT).unwrap();
        let (script, store, paths) = (&handles.script, &handles.store, paths.join(" "));
        sh(&format!("python3 {script} save {} {store} {paths}", text(dir)));
        handles
    }

    /// The result of opening a handle in this mount.
    fn open(&self, dir: &Path, path: &str) -> String {
        let (script, store) = (&self.script, &self.store);
        let output = sh(&format!("python3 {script} open {} {store} {path}", text(dir)));
        output.trim().replace(text(dir), "MOUNT")
    }

    fn check_all(&self, dir: &Path) {
        assert_eq!(self.open(dir, "d/e/f"), "content");
        assert_eq!(self.open(dir, "d/e/g"), "content");
        assert_eq!(self.open(dir, "d/e"), "MOUNT/d/e d");
        assert!(
            self.open(dir, ".").starts_with("MOUNT "),
            "{}",
            self.open(dir, ".")
        );
    }
}

/// Drops unused dentries and inodes of the kernel.
fn drop_caches() {
    sh("for i in 1 2 3; do echo 2 > /proc/sys/vm/drop_caches; done");
}

#[test]
fn file_handle_survives_cache_drop_and_remount() {
    let mut env = TwoMounts::new();
    env.sh("mkdir -p d/e; echo content > d/e/f; ln d/e/f d/e/g");
    let second = env.b.clone();
    let handles = Handles::of(&env, &second, &["d/e/f", "d/e/g", "d/e", "."]);
    handles.check_all(&second);
    drop_caches();
    handles.check_all(&second);
    // The kernel has cached nothing of a new mount.
    let (script, store) = (handles.script.clone(), handles.store.clone());
    nacre_ok(&["umount", text(&second)]);
    let new_mount = env.fs.add_mount("second", 9);
    assert_eq!(new_mount, second);
    let handles = Handles {
        env: &env,
        script,
        store,
    };
    handles.check_all(&new_mount);
    // The handle of a moved directory leads to its new path.
    env.sh("mv d/e moved");
    drop_caches();
    assert!(handles.open(&new_mount, "d/e").starts_with("MOUNT/moved "));
    assert_eq!(handles.open(&new_mount, "d/e/f"), "content");
    handles.env.sh("rm moved/f");
    assert_eq!(
        handles.open(&new_mount, "d/e/f"),
        "content",
        "the file has another name"
    );
    handles
        .env
        .sh("rm moved/g; rmdir moved; mkdir -p d/e; echo other > d/e/f");
    // The kernel still caches the directory.
    for path in ["d/e/f", "d/e/g", "d/e"] {
        assert_eq!(handles.open(&new_mount, path), "ESTALE", "{path}");
    }
}

#[test]
fn handle_of_another_file_system_is_stale() {
    let (env, other) = (TwoMounts::new(), TwoMounts::new());
    for env in [&env, &other] {
        env.sh("mkdir d; echo content > d/f");
    }
    let handles = Handles::of(&env, &env.a, &["d/f", "d"]);
    drop_caches();
    assert_eq!(handles.open(&env.a, "d/f"), "content");
    for path in ["d/f", "d"] {
        assert_eq!(handles.open(&other.a, path), "ESTALE");
    }
}
