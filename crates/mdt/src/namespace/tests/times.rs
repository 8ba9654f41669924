//! Tests of times of inodes.

use wire::{
    Errno, HasTimes, MDS_ATTR_ATIME, MDS_ATTR_ATIME_SET, MDS_ATTR_ATTR_FLAG, MDS_ATTR_MODE, MDS_ATTR_MTIME,
    MDS_ATTR_MTIME_SET, MdtRecSetattr, Time, Times,
};

use super::{
    super::{APPEND, CloseAttrs, IMMUTABLE, apply_close_attrs},
    Fixture, ROOT,
};
use crate::{cred::Cred, store::Inode};

#[test]
fn append_only_file_accepts_only_the_current_time() {
    let mut f = Fixture::new();
    let file = f.file(ROOT, "log");
    let set_flags = |f: &Fixture, sa_attr_flags| {
        let rec = MdtRecSetattr {
            sa_attr_flags,
            ..MdtRecSetattr::default()
        };
        f.setattr(file, MDS_ATTR_ATTR_FLAG, rec).unwrap();
    };
    let set = |f: &Fixture, valid| f.setattr(file, valid, MdtRecSetattr::default()).map(drop);
    let now = MDS_ATTR_ATIME | MDS_ATTR_MTIME;
    set_flags(&f, APPEND);
    set(&f, now).unwrap();
    for other in [MDS_ATTR_ATIME_SET, MDS_ATTR_MTIME_SET, MDS_ATTR_MODE] {
        assert_eq!(set(&f, now | other), Err(Errno::EPERM));
    }
    f.become_user(5);
    assert_eq!(set(&f, now), Err(Errno::EACCES));
    f.cred = Cred::root();
    set_flags(&f, IMMUTABLE);
    assert_eq!(set(&f, now), Err(Errno::EPERM));
}

#[test]
fn close_keeps_an_access_time_set_in_the_same_second() {
    let before = Inode {
        mode: 0o100644,
        atime: Time::secs(50),
        mtime: Time::secs(40),
        ctime: Time::new(100, 500_000_000),
        ..Inode::default()
    };
    let atime_after_close = |read: Time| {
        let mut rec = MdtRecSetattr {
            sa_valid: MDS_ATTR_ATIME,
            ..MdtRecSetattr::default()
        };
        rec.set_times(Times {
            atime: read,
            ..Times::default()
        });
        let (mut inode, atime_diff) = (before.clone(), 60);
        apply_close_attrs(
            &mut inode,
            CloseAttrs {
                rec: &rec,
                atime_diff,
            },
            false,
        );
        inode.atime
    };
    // The kernel's Lustre client sends whole seconds: the read may have preceded the change.
    assert_eq!(atime_after_close(Time::secs(100)), Time::secs(50));
    assert_eq!(atime_after_close(Time::secs(101)), Time::secs(101));
    assert_eq!(atime_after_close(Time::new(100, 400_000_000)), Time::secs(50));
    let after_change = Time::new(100, 600_000_000);
    assert_eq!(atime_after_close(after_change), after_change);
}
