//! rename(2) and renameat2(2).

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{CWD, RenameFlags, rename, renameat_with};
use rustix::io::Errno;

use crate::semantics::place::{Place, refused};

#[test]
fn rename_follows_posix() {
    let place = Place::new();
    let (a, b) = (&place.a, &place.b);
    place.sh("echo one > f1; echo two > f2; mkdir d1 d2 full; touch full/x; ln f1 link; ln -s f1 soft");
    let mv = |from: &str, to: &str| rename(a.join(from), a.join(to));
    // Over a file, an empty directory, a symbolic link; a rename to another name of the same file
    // has no effect.
    mv("f2", "f1").unwrap();
    assert_eq!(fs::read_to_string(b.join("f1")).unwrap(), "two\n");
    assert_eq!(fs::read_to_string(b.join("link")).unwrap(), "one\n");
    assert_eq!(fs::metadata(b.join("link")).unwrap().nlink(), 1);
    fs::hard_link(b.join("link"), b.join("link2")).unwrap();
    mv("link", "link2").unwrap();
    assert_eq!(fs::metadata(b.join("link")).unwrap().nlink(), 2);
    assert!(b.join("link2").exists());
    mv("full", "d1").unwrap();
    assert!(b.join("d1/x").exists() && !b.join("full").exists());
    mv("link2", "soft").unwrap();
    assert!(fs::symlink_metadata(b.join("soft")).unwrap().is_file());
    mv("f1", "f1").unwrap();
    // Moving a directory changes its `..` and the link counts of both parents.
    mv("d2", "d1/d2").unwrap();
    assert_eq!(fs::metadata(b.join("d1")).unwrap().nlink(), 3);
    assert_eq!(
        fs::metadata(b.join("d1/d2/..")).unwrap().ino(),
        fs::metadata(b.join("d1")).unwrap().ino()
    );
    // Rejected renames.
    place.sh("mkdir empty");
    assert_eq!(refused(mv("empty", "d1")), Errno::NOTEMPTY);
    assert_eq!(refused(mv("empty", "f1")), Errno::NOTDIR);
    assert_eq!(refused(mv("f1", "empty")), Errno::ISDIR);
    assert_eq!(refused(mv("d1", "d1/d2/below")), Errno::INVAL);
    assert_eq!(refused(mv("d1/d2", "d1")), Errno::NOTEMPTY);
    assert_eq!(refused(mv("absent", "new")), Errno::NOENT);
    assert_eq!(refused(mv("d1/.", "new")), Errno::BUSY);
    assert_eq!(refused(mv("f1", "new/")), Errno::NOTDIR);
    assert_eq!(refused(mv("f1", &"n".repeat(256))), Errno::NAMETOOLONG);
}

#[test]
fn renameat2_flags_return_einval_and_mv_works() {
    let place = Place::new();
    let (from, to) = (place.a.join("from"), place.a.join("to"));
    fs::write(&from, "from").unwrap();
    let with = |flags| renameat_with(CWD, &from, CWD, &to, flags);
    for flags in [RenameFlags::NOREPLACE, RenameFlags::WHITEOUT] {
        assert_eq!(refused(with(flags)), Errno::INVAL);
    }
    fs::write(&to, "to").unwrap();
    assert_eq!(refused(with(RenameFlags::EXCHANGE)), Errno::INVAL);
    assert_eq!(refused(with(RenameFlags::NOREPLACE)), Errno::EXIST);
    place.sh("mv -n from to; test \"$(cat from to)\" = fromto; mv -n from new; test \"$(cat new)\" = from");
}

#[test]
fn file_replaced_by_rename_stays_open() {
    let place = Place::new();
    place.sh("echo old > old; echo new > new");
    let open = fs::File::open(place.a.join("old")).unwrap();
    rename(place.b.join("new"), place.b.join("old")).unwrap();
    assert_eq!(std::io::read_to_string(&open).unwrap(), "old\n");
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    assert_eq!(fs::read_to_string(place.a.join("old")).unwrap(), "new\n");
}
