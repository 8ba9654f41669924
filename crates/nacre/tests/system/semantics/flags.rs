//! Inode flags: chattr(1) and lsattr(1).

use crate::semantics::two_mounts::{TwoMounts, run_script_in};

#[test]
fn immutable_and_append_only_flags_hold_on_all_mounts() {
    let env = TwoMounts::new();
    env.sh("echo one > f; mkdir d; echo x > d/x; chattr +i f d; test \"$(lsattr f | cut -c5)\" = i");
    let immutable = "
        lsattr -d d | cut -c5 | grep -q i
        for t in 'echo >> f' 'rm -f f' 'mv f g' 'ln f g' 'chmod 600 f' 'touch d/y' 'rm -f d/x' 'truncate -s 1 f'; do
            if error=$(bash -c \"$t\" 2>&1); then echo \"done: $t\"; exit 1; fi
            [[ $error == *'not permitted'* ]]
        done
        cat f d/x
    ";
    for mount in [&env.a, &env.b] {
        assert_eq!(run_script_in(mount, immutable), "one\nx\n");
    }
    run_script_in(&env.b, "chattr -i f d; chattr +a f; echo two >> f");
    for mount in [&env.a, &env.b] {
        let script = "
            for t in 'echo > f' 'rm -f f' 'truncate -s 1 f'; do
                if bash -c \"$t\" 2> /dev/null; then echo \"done: $t\"; exit 1; fi
            done
            echo more >> f; touch f; test \"$(stat -c %Y f)\" -gt 1000000000
        ";
        run_script_in(mount, script);
    }
    assert_eq!(
        env.sh("chattr -a f; cat f; echo > f; rm f"),
        "one\ntwo\nmore\nmore\n"
    );
}

#[test]
fn only_root_changes_immutable_and_append_only_flags() {
    let env = TwoMounts::new();
    env.sh("echo > f; chmod 666 f; mkdir open; chmod 777 open");
    let error = env.sh_as_user_fails("", "chattr +d f");
    assert!(error.contains("not permitted"), "{error}");
    let output = env.sh_as_user(
        "",
        "cd open; echo > g; chattr +dA g; lsattr g | tr -d -; lsattr -p g | awk '{print $1}'",
    );
    assert_eq!(output, "dA g\n0\n");
    for flag in ["i", "a"] {
        let error = env.sh_as_user_fails("", &format!("chattr +{flag} open/g"));
        assert!(error.contains("not permitted"), "{error}");
    }
    assert_eq!(
        env.sh("chattr -p 7 open/g; lsattr -p open/g | awk '{print $1}'"),
        "7\n"
    );
    let error = run_script_in(&env.b, "if chattr +c open/g 2>&1; then exit 1; fi");
    assert!(error.contains("not supported"), "{error}");
    env.sh("mkfifo p; ! lsattr p 2> /dev/null");
}
