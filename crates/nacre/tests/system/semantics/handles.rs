//! File handles (`name_to_handle_at`, `open_by_handle_at`), on which servers of NFS stand.

use std::path::Path;

use crate::file_system::text;
use crate::fixture::{nacre_ok, sh};
use crate::semantics::place::Place;

/// `handles.py save DIR STORE PATH..` writes handles of paths; `handles.py open DIR STORE PATH` prints the path of the file
/// that a handle is of and, of a regular file, its content; or the name of the error.
const HANDLES: &str = r#"
import ctypes, errno, os, pickle, stat, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_char * 128)]
what, top, store = sys.argv[1:4]
top = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
if what == "save":
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

struct Handles<'a> {
    place: &'a Place,
    script: String,
    store: String,
}

impl Handles<'_> {
    fn of<'a>(place: &'a Place, dir: &Path, paths: &[&str]) -> Handles<'a> {
        let handles = Handles {
            place,
            script: place.fs.site.at("handles.py"),
            store: place.fs.site.at("handles"),
        };
        std::fs::write(&handles.script, HANDLES).unwrap();
        let (script, store, paths) = (&handles.script, &handles.store, paths.join(" "));
        sh(&format!("python3 {script} save {} {store} {paths}", text(dir)));
        handles
    }

    /// What a handle leads to in this mount.
    fn open(&self, dir: &Path, path: &str) -> String {
        let (script, store) = (&self.script, &self.store);
        let said = sh(&format!("python3 {script} open {} {store} {path}", text(dir)));
        said.trim().replace(text(dir), "MOUNT")
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

/// Has the kernel forget what it does not need.
fn drop_caches() {
    sh("for i in 1 2 3; do echo 2 > /proc/sys/vm/drop_caches; done");
}

#[test]
fn a_file_handle_outlives_the_kernels_caches_and_the_mount() {
    let mut place = Place::new();
    place.sh("mkdir -p d/e; echo content > d/e/f; ln d/e/f d/e/g");
    let second = place.b.clone();
    let handles = Handles::of(&place, &second, &["d/e/f", "d/e/g", "d/e", "."]);
    handles.check_all(&second);
    drop_caches();
    handles.check_all(&second);
    // The kernel of another mount of the file system has never seen the files.
    let (script, store) = (handles.script.clone(), handles.store.clone());
    nacre_ok(&["umount", text(&second)]);
    let again = place.fs.attach("second", 9);
    assert_eq!(again, second);
    let handles = Handles {
        place: &place,
        script,
        store,
    };
    handles.check_all(&again);
    // A directory that moved is found where it is now, by its handle alone.
    place.sh("mv d/e moved");
    drop_caches();
    assert!(handles.open(&again, "d/e").starts_with("MOUNT/moved "));
    assert_eq!(handles.open(&again, "d/e/f"), "content");
    handles.place.sh("rm moved/f");
    assert_eq!(handles.open(&again, "d/e/f"), "content", "it has another name");
    handles
        .place
        .sh("rm moved/g; rmdir moved; mkdir -p d/e; echo other > d/e/f");
    for gone in ["d/e/f", "d/e/g"] {
        assert_eq!(handles.open(&again, gone), "ESTALE", "{gone}");
    }
    // A directory that this kernel still knows is found to be gone only when its attributes are asked for.
    let dir = handles.open(&again, "d/e");
    assert!(["ESTALE", "ENOENT"].contains(&&dir[..]), "{dir}");
}

#[test]
fn a_handle_of_another_file_system_is_stale() {
    let (place, other) = (Place::new(), Place::new());
    for place in [&place, &other] {
        place.sh("mkdir d; echo content > d/f");
    }
    let handles = Handles::of(&place, &place.a, &["d/f", "d"]);
    drop_caches();
    assert_eq!(handles.open(&place.a, "d/f"), "content");
    for path in ["d/f", "d"] {
        assert_eq!(handles.open(&other.a, path), "ESTALE");
    }
}
