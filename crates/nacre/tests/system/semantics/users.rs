//! Permissions: other users, groups, sticky and set-ID bits.

use crate::semantics::two_mounts::TwoMounts;

const DENIED: &str = "Permission denied";
const NOT_PERMITTED: &str = "Operation not permitted";

#[track_caller]
fn assert_contains(message: &str, expected: &str) {
    assert!(
        message.contains(expected),
        "{message:?} does not contain {expected:?}"
    );
}

#[test]
fn sticky_directory_restricts_remove_and_rename_to_owners() {
    let env = TwoMounts::new();
    env.sh("mkdir t; chmod 1777 t; echo > t/roots; chmod 666 t/roots");
    for command in [
        "rm -f t/roots",
        "mv t/roots t/mine",
        "touch t/new; mv -f t/new t/roots",
    ] {
        assert_contains(&env.sh_as_user_fails("", command), NOT_PERMITTED);
    }
    env.sh_as_user("", "echo x >> t/roots; touch t/own; mv t/own t/own2; rm t/own2");
}

#[test]
fn set_group_id_directory_passes_on_its_group() {
    let env = TwoMounts::new();
    env.sh("mkdir d; chgrp 3007 d; chmod 2777 d");
    env.sh_as_user("", "touch d/f; mkdir d/d; ln -s x d/l; mkfifo d/p");
    assert_eq!(
        env.sh("stat -c '%n %g %a' d/*"),
        "d/d 3007 2755\nd/f 3007 644\nd/l 3007 777\nd/p 3007 644\n"
    );
    // The set-group-ID bit is dropped if the user is not in the file's group.
    env.sh_as_user("", "install -m 2755 /bin/true d/not");
    env.sh_as_user("1,3007", "install -m 2755 /bin/true d/is");
    assert_eq!(env.sh("stat -c '%n %a' d/is d/not"), "d/is 2755\nd/not 755\n");
    env.sh("touch own; chown 1000:3007 own");
    env.sh_as_user("", "chmod 2755 own; test $(stat -c %a own) = 755");
    env.sh_as_user("3001,3002,3007", "chmod 2755 own; test $(stat -c %a own) = 2755");
}

#[test]
fn every_supplementary_group_is_checked() {
    let env = TwoMounts::new();
    let groups = "3000,3001,3002,3003,3004,3005,3006,3007,3008,3009";
    env.sh("mkdir -m 770 g h; chgrp 3007 g; chgrp 3009 h; echo secret > s; chgrp 3008 s; chmod 640 s");
    env.sh_as_user(
        groups,
        "ls g; echo x > g/f; cat g/f; mkdir g/d; mv g/f g/d/f; mv g/d/f h/f; rm h/f; cat s",
    );
    assert_contains(&env.sh_as_user_fails("3000,3001", "ls g"), DENIED);
    assert_contains(&env.sh_as_user_fails("3000,3001", "cat s"), DENIED);
    // An owner may change the group to each of the user's groups, but to no other.
    env.sh("touch own; chown 1000:1000 own");
    env.sh_as_user(groups, "chgrp 3006 own; chgrp 3002 own");
    assert_contains(&env.sh_as_user_fails(groups, "chgrp 4000 own"), NOT_PERMITTED);
    assert_contains(&env.sh_as_user_fails(groups, "chown 1001 own"), NOT_PERMITTED);
}

/// Permissions are checked when a directory is opened, not when it is read.
#[test]
fn open_directory_is_readable_after_dropping_privileges() {
    let env = TwoMounts::new();
    env.sh("mkdir -m 700 p; touch p/a; exec 7< p; setpriv --reuid=1000 --clear-groups ls /proc/self/fd/7/ && exit 1; \
              test \"$(setpriv --reuid=1000 --clear-groups perl -e 'opendir(my $d, \"/dev/null\"); exit' </dev/null)\" = ''");
    let script = "opendir(my $d, 'p') or die; $) = '1000 1000'; $> = 1000; \
                  opendir(my $e, 'p') and die 'opened'; print join(' ', sort readdir $d)";
    assert_eq!(
        env.sh(&format!("perl -e \"{}\"", script.replace('$', "\\$"))),
        ". .. a"
    );
}

#[test]
fn write_by_another_user_clears_set_id_bits() {
    let env = TwoMounts::new();
    let changes = [
        "echo x >> f",
        ": > f",
        "truncate -s 1 f",
        "fallocate -l 100 f",
        "dd if=/bin/true of=f bs=64 count=1 conv=notrunc status=none",
    ];
    for change in changes {
        env.sh("rm -f f; touch f; chmod 6777 f");
        env.sh_as_user("", change);
        assert_eq!(env.sh("stat -c %a f"), "777\n", "after {change}");
    }
    // Without group execution, only a write by a member of the group keeps the set-group-ID bit.
    for change in changes {
        env.sh("rm -f f; touch f; chmod 6767 f");
        env.sh_as_user("", change);
        assert_eq!(env.sh("stat -c %a f"), "767\n", "after {change}");
        env.sh("rm -f f; touch f; chgrp 1000 f; chmod 6767 f");
        env.sh_as_user("", change);
        assert_eq!(env.sh("stat -c %a f"), "2767\n", "after {change} of a member");
    }
    env.sh("chmod 6777 f; echo x >> f; test $(stat -c %a f) = 6777; chown 5:5 f; test $(stat -c %a f) = 777");
    assert_contains(&env.sh_as_user_fails("", "chmod 700 f"), NOT_PERMITTED);
}

#[test]
fn mode_bits_are_enforced() {
    let env = TwoMounts::new();
    env.sh("mkdir -m 711 x; mkdir -m 744 r; mkdir -m 733 w; touch x/f r/f w/f ro; chmod 444 ro; touch other");
    env.sh_as_user("", "cat x/f; ls r; touch w/new");
    for command in [
        "ls x",
        "cat r/f",
        "ls w",
        "echo > ro",
        "truncate -s 0 ro",
        "touch other",
        "touch -d @5 other",
    ] {
        assert_contains(&env.sh_as_user_fails("", command), DENIED);
    }
    assert_contains(&env.sh_as_user_fails("", "mknod w/null c 1 3"), NOT_PERMITTED);
    // The creator of a file may write to it, whatever its mode.
    env.sh_as_user(
        "",
        "cp ro w/copy; umask 077; mkdir w/private; test $(stat -c %a w/private) = 700",
    );
}
