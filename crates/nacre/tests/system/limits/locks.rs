//! Too many locks: clients cancel some, without effect on programs.

use super::{get_param, set_param, wait_until};
use crate::fixture::{Site, nacre_ok, sh};

#[test]
fn clients_cancel_locks_above_the_server_limit() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "2"]);
    let nid = site.nid("d");
    let port = sh(&format!(
        "grep -o '\"port\":[ ]*[0-9]*' {}/run.json | grep -o '[0-9]*$'",
        site.path_str("d")
    ));
    let other = site.mount(&format!("{nid}:/nacre"), "other", &["--port", port.trim()]);
    set_param(&site, "d", "ldlm.lock_reclaim_threshold_mb=1");
    set_param(&site, "d", "ldlm.lock_limit_mb=2");
    let locks = |param: &str| -> u64 { get_param(&site, "d", param).parse().unwrap() };
    // Each file takes locks on the MDT and on an OST, through both mounts; together they exceed the
    // limit.
    sh(&format!(
        "mkdir {mount}/many && cd {mount}/many && for i in {{1..1200}}; do echo $i > f$i; done && cat {other}/many/* | sort -n | cmp - <(seq 1200)"
    ));
    assert!(locks("ldlm.lock_granted_count") <= 2048);
    sh(&format!(
        "stat -c '%n %s' {mount}/many/* > {0}/a && stat -c '%n %s' {other}/many/* > {0}/b && wc -l < {0}/a && sed 's,^.*/many,,' {0}/a | cmp - <(sed 's,^.*/many,,' {0}/b)",
        site.path_str("d")
    ));
    wait_until("the locks come down to the threshold", || {
        locks("ldlm.lock_granted_count") <= 1024
    });
    // Changes are visible on the other mount, whether or not their locks were reclaimed.
    sh(&format!(
        "cd {mount}/many && for i in {{1..300}}; do echo changed$i > f$i; done && rm f30* && \
         cd {other}/many && test $(cat f1 f2 f299 | tr '\\n' ' ' | wc -w) = 3 && grep -q changed299 f299 && test ! -e f300 && ls | wc -l"
    ));
    let timeouts = nacre_ok(&[
        "lctl",
        "get_param",
        "-n",
        "--dir",
        &site.path_str("d"),
        "ldlm.namespaces.*.lock_timeouts",
    ]);
    assert!(timeouts.split_whitespace().all(|n| n == "0"), "{timeouts}");
}
