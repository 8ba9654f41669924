//! POSIX access control lists, with Debian's `acl` tools.

use crate::semantics::two_mounts::TwoMounts;

#[test]
fn acl_mask_limits_named_users_and_groups() {
    let env = TwoMounts::new();
    env.sh("echo hello > f; chmod 640 f; setfacl -m u:1000:rw,g:2000:r f; test $(stat -c %a f) = 660");
    env.sh_as_user("", "cat f; echo >> f");
    // A chmod of the group bits sets the mask.
    env.sh("chmod 600 f");
    env.sh_as_user_fails("", "cat f");
    env.sh("chmod g+r f");
    env.sh_as_user("", "cat f");
    env.sh_as_user_fails("", "echo >> f");
    assert_eq!(
        env.sh("getfacl -cn f"),
        "user::rw-\nuser:1000:rw-\t#effective:r--\ngroup::r--\ngroup:2000:r--\nmask::r--\nother::---\n\n"
    );
    env.sh("setfacl -b f; test $(stat -c %a f) = 640");
    env.sh_as_user_fails("", "cat f");
}

/// A request carries only some supplementary groups: the client must choose the relevant one.
#[test]
fn acl_group_matches_supplementary_groups() {
    let env = TwoMounts::new();
    env.sh("mkdir d; echo hello > d/f; chmod 700 d; chmod 600 d/f; setfacl -m g:2000:rx d; setfacl -m g:2000:r,g:2001:rw d/f");
    env.sh_as_user("1,2,3,4,5,2000", "cat d/f");
    env.sh_as_user("2000,2001", "echo >> d/f");
    env.sh_as_user_fails("2000", "echo >> d/f");
    env.sh_as_user_fails("2001", "cat d/f");
    // If the owning group has no permission, the entry of another group still grants access.
    env.sh("chgrp 3000 d d/f");
    env.sh_as_user("3000,2000", "ls d; cat d/f");
}

#[test]
fn default_acl_replaces_the_umask() {
    let env = TwoMounts::new();
    env.sh("mkdir d; setfacl -d -m u:1000:rwx,g:2000:rx,o::- d; umask 077; touch d/f; mkdir d/d; mkfifo d/p; ln -s x d/l");
    let inherited = "user::rw-\nuser:1000:rwx\t#effective:rw-\ngroup::r-x\t#effective:r--\n\
                     group:2000:r-x\t#effective:r--\nmask::rw-\nother::---\n\n";
    assert_eq!(env.sh("getfacl -cn d/f"), inherited);
    assert_eq!(env.sh("getfacl -cn d/p"), inherited);
    assert_eq!(env.sh("stat -c %a d/f d/d"), "660\n770\n");
    // A directory passes its default ACL on to subdirectories.
    assert_eq!(env.sh("getfacl -cnd d/d"), env.sh("getfacl -cnd d"));
    env.sh("setfacl -k d; umask 022; touch d/g; test $(stat -c %a d/g) = 644");
    env.sh_as_user("", "cat d/f; echo > d/f");
}

#[test]
fn only_the_owner_sets_an_acl() {
    let env = TwoMounts::new();
    env.sh("touch own other; chown 1000 own");
    env.sh_as_user("", "setfacl -m u:1001:rw own");
    env.sh_as_user_fails("", "setfacl -m u:1000:rw other");
    env.sh("setfacl -d -m u:1:r own && exit 1; setfacl -m u:5:rwx own; chown 1001:6 own; getfacl -cn own | grep -q user:5:rwx");
    env.sh_as_user_fails("", "setfacl -b own");
}

#[test]
fn archives_and_copies_keep_acls() {
    let env = TwoMounts::new();
    env.sh(
        "mkdir -p tree/d; touch tree/f tree/d/g; setfacl -m u:5:r,g:6:rw,g:7:rwx tree/f; setfacl -d -m u:77:rx tree/d
         list() { getfacl -Rn $1 | sed '/^# file/d'; }
         list tree > ../before
         tar --acls -cf ../tree.tar tree; mv tree old; tar --acls -xpf ../tree.tar; list tree | cmp - ../before
         rsync -aA tree/ copy; list copy | cmp - ../before
         cp -a tree copy2; list copy2 | cmp - ../before",
    );
}

/// The kernel limits ACLs on FUSE to one page.
#[test]
fn acl_can_have_500_entries() {
    let env = TwoMounts::new();
    env.sh(
        "touch f; setfacl -m $(seq -s, -f u:%.0f:r 10000 10499) f; test $(getfacl -cn f | grep -c user:) = 501
         ! setfacl -m $(seq -s, -f u:%.0f:r 10000 10600) f 2> ../err; grep -q 'Argument list too long' ../err
         test $(getfacl -cn f | grep -c user:) = 501",
    );
}
