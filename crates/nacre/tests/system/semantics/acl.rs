//! POSIX access control lists, with the tools of Debian's `acl`.

use crate::semantics::place::Place;

#[test]
fn an_acl_gives_named_users_and_groups_what_the_mask_allows() {
    let place = Place::new();
    place.sh("echo hello > f; chmod 640 f; setfacl -m u:1000:rw,g:2000:r f; test $(stat -c %a f) = 660");
    place.user("", "cat f; echo >> f");
    // By the mask, which a chmod of the group's bits sets.
    place.sh("chmod 600 f");
    place.user_may_not("", "cat f");
    place.sh("chmod g+r f");
    place.user("", "cat f");
    place.user_may_not("", "echo >> f");
    assert_eq!(
        place.sh("getfacl -cn f"),
        "user::rw-\nuser:1000:rw-\t#effective:r--\ngroup::r--\ngroup:2000:r--\nmask::r--\nother::---\n\n"
    );
    place.sh("setfacl -b f; test $(stat -c %a f) = 640");
    place.user_may_not("", "cat f");
}

/// A request carries one group; it is the one that counts.
#[test]
fn a_group_of_an_acl_counts_as_any_supplementary_group() {
    let place = Place::new();
    place.sh("mkdir d; echo hello > d/f; chmod 700 d; chmod 600 d/f; setfacl -m g:2000:rx d; setfacl -m g:2000:r,g:2001:rw d/f");
    place.user("1,2,3,4,5,2000", "cat d/f");
    place.user("2000,2001", "echo >> d/f");
    place.user_may_not("2000", "echo >> d/f");
    place.user_may_not("2001", "cat d/f");
    // A group of the file with no right does not stand in the way of one with a right.
    place.sh("chgrp 3000 d d/f");
    place.user("3000,2000", "ls d; cat d/f");
}

#[test]
fn a_default_acl_is_what_new_files_begin_with_and_the_umask_is_not() {
    let place = Place::new();
    place.sh("mkdir d; setfacl -d -m u:1000:rwx,g:2000:rx,o::- d; umask 077; touch d/f; mkdir d/d; mkfifo d/p; ln -s x d/l");
    let inherited = "user::rw-\nuser:1000:rwx\t#effective:rw-\ngroup::r-x\t#effective:r--\n\
                     group:2000:r-x\t#effective:r--\nmask::rw-\nother::---\n\n";
    assert_eq!(place.sh("getfacl -cn d/f"), inherited);
    assert_eq!(place.sh("getfacl -cn d/p"), inherited);
    assert_eq!(place.sh("stat -c %a d/f d/d"), "660\n770\n");
    // A directory hands it on.
    assert_eq!(place.sh("getfacl -cnd d/d"), place.sh("getfacl -cnd d"));
    place.sh("setfacl -k d; umask 022; touch d/g; test $(stat -c %a d/g) = 644");
    place.user("", "cat d/f; echo > d/f");
}

#[test]
fn who_owns_a_file_sets_its_acl_and_no_one_else() {
    let place = Place::new();
    place.sh("touch own other; chown 1000 own");
    place.user("", "setfacl -m u:1001:rw own");
    place.user_may_not("", "setfacl -m u:1000:rw other");
    place.sh("setfacl -d -m u:1:r own && exit 1; setfacl -m u:5:rwx own; chown 1001:6 own; getfacl -cn own | grep -q user:5:rwx");
    place.user_may_not("", "setfacl -b own");
}

#[test]
fn archives_and_copies_keep_acls() {
    let place = Place::new();
    place.sh(
        "mkdir -p tree/d; touch tree/f tree/d/g; setfacl -m u:5:r,g:6:rw,g:7:rwx tree/f; setfacl -d -m u:77:rx tree/d
         list() { getfacl -Rn $1 | sed '/^# file/d'; }
         list tree > ../before
         tar --acls -cf ../tree.tar tree; mv tree old; tar --acls -xpf ../tree.tar; list tree | cmp - ../before
         rsync -aA tree/ copy; list copy | cmp - ../before
         cp -a tree copy2; list copy2 | cmp - ../before",
    );
}

/// The kernel hands a FUSE file system no ACL larger than a page.
#[test]
fn an_acl_has_500_entries() {
    let place = Place::new();
    place.sh(
        "touch f; setfacl -m $(seq -s, -f u:%.0f:r 10000 10499) f; test $(getfacl -cn f | grep -c user:) = 501
         ! setfacl -m $(seq -s, -f u:%.0f:r 10000 10600) f 2> ../err; grep -q 'Argument list too long' ../err
         test $(getfacl -cn f | grep -c user:) = 501",
    );
}
