//! `nacre lfs` and `nacre lctl`, and a session of `nacre lst`.

use crate::fixture::{self, Site, nacre, nacre_ok, nacre_refuses, sh};

#[test]
fn layouts_are_set_inherited_and_shown() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "3"]);
    let path = |name: &str| format!("{mount}/{name}");
    nacre_ok(&["lfs", "setstripe", "-c", "2", "-S", "1M", "-i", "1", &path("f")]);
    let output = nacre_ok(&["lfs", "getstripe", &path("f")]);
    for line in [
        "lmm_stripe_count:  2",
        "lmm_stripe_size:   1048576",
        "lmm_pattern:       raid0",
        "lmm_stripe_offset: 1",
    ] {
        assert!(output.contains(line), "{output}");
    }
    sh(&format!("mkdir {}", path("dir")));
    nacre_ok(&["lfs", "setstripe", "-c", "-1", "-S", "128K", &path("dir")]);
    sh(&format!("echo x > {}", path("dir/inherits")));
    assert_eq!(
        nacre_ok(&["lfs", "getstripe", "-c", &path("dir/inherits")]).trim(),
        "3"
    );
    assert!(
        nacre_ok(&["lfs", "getstripe", "-d", &path("dir")])
            .contains("stripe_count:  -1 stripe_size:   131072")
    );
    nacre_ok(&["lfs", "setstripe", "-d", &path("dir")]);
    sh(&format!("echo x > {}", path("dir/default")));
    assert_eq!(
        nacre_ok(&["lfs", "getstripe", "-c", &path("dir/default")]).trim(),
        "1"
    );

    assert!(nacre_refuses(&["lfs", "setstripe", "-c", "2", &path("f")]).contains("exists already"));
    assert!(nacre_refuses(&["lfs", "setstripe", "-S", "100", &path("g")]).contains("multiple of 64K"));
    nacre_refuses(&["lfs", "setstripe", "-i", "77", &path("g")]);
    assert!(
        !std::path::Path::new(&path("g")).exists(),
        "the file was removed again"
    );
}

#[test]
fn path2fid_and_fid2path_are_inverse() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    sh(&format!("mkdir -p {mount}/a/b && echo x > {mount}/a/b/file"));
    let file = format!("{mount}/a/b/file");
    let fid = nacre_ok(&["lfs", "path2fid", &file]);
    assert!(fid.starts_with("[0x"), "{fid}");
    assert_eq!(nacre_ok(&["lfs", "fid2path", &mount, fid.trim()]).trim(), file);
    sh(&format!("mv {mount}/a {mount}/c"));
    assert_eq!(
        nacre_ok(&["lfs", "fid2path", &mount, fid.trim()]).trim(),
        format!("{mount}/c/b/file")
    );
}

#[test]
fn df_shows_every_target() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "2", "--fsname", "lus"]);
    for flags in [&["-h"][..], &["-i"], &[]] {
        let output = nacre_ok(&[&["lfs", "df"], flags, &[&mount]].concat());
        for name in [
            "lus-MDT0000_UUID",
            "lus-OST0000_UUID",
            "lus-OST0001_UUID",
            "filesystem_summary:",
        ] {
            assert!(output.contains(name), "{output}");
        }
    }
}

#[test]
fn parameters_are_listed_read_set_and_permanent() {
    let mut site = Site::new();
    let mount = site.up("d", &["--fsname", "lus"]);
    let dir = site.path_str("d");
    let lctl = |args: &[&str]| nacre_ok(&[&["lctl", "--dir", &dir], args].concat());
    assert!(lctl(&["get_param", "version"]).starts_with("version=nacre "));
    assert!(lctl(&["get_param", "-n", "nis"]).contains("@tcp"));
    assert!(lctl(&["list_param", "-R", "-F", "osc"]).contains("max_rpcs_in_flight="));
    assert!(lctl(&["list_param"]).lines().any(|name| name == "osc"));
    assert!(lctl(&["get_param", "-R", "osc"]).contains("max_rpcs_in_flight="));
    assert!(
        lctl(&["get_param", "-H", "nis"])
            .lines()
            .all(|line| line.starts_with("nis="))
    );
    assert!(lctl(&["get_param", "-y", "version"]).starts_with("version: \"nacre "));
    assert!(
        lctl(&["set_param", "osc.*.max_rpcs_in_flight=3"])
            .trim()
            .ends_with(".max_rpcs_in_flight=3")
    );
    assert_eq!(lctl(&["get_param", "-n", "osc.*.max_rpcs_in_flight"]).trim(), "3");
    let error = nacre_refuses(&[
        "lctl",
        "--dir",
        &dir,
        "set_param",
        "osc.*.max_rpcs_in_flight=many",
    ]);
    assert!(error.contains("cannot set") && error.contains("many"), "{error}");
    assert!(nacre_refuses(&["lctl", "--mount", &mount, "get_param", "no.such"]).contains("no.such"));
    assert!(nacre_refuses(&["lctl", "--dir", &dir, "set_param", "version=2"]).contains("read-only"));

    let stored = "osc.*.max_rpcs_in_flight=5";
    assert_eq!(
        lctl(&["set_param", "-P", stored]),
        format!("stored for all nodes: {stored}\n")
    );
    let live = || lctl(&["get_param", "-n", "mgs.MGS.live.params"]);
    assert_eq!(live().trim(), stored);
    let typo = nacre(&["lctl", "--dir", &dir, "set_param", "-P", "osc.*.max_rpc=5"]);
    assert!(typo.ok && typo.err.contains("osc.*.max_rpc'"), "{}", typo.err);
    assert!(live().contains("osc.*.max_rpc=5"));
    lctl(&["set_param", "-P", "-d", "osc.*.max_rpc"]);
    assert_eq!(live().trim(), stored);
    let setting = "osc.*.max_rpcs_in_flight=many";
    assert!(nacre_refuses(&["lctl", "--dir", &dir, "set_param", "-P", setting]).contains("many"));
    assert_eq!(live().trim(), stored);
    site.down("d");
    site.up("d", &[]);
    assert_eq!(lctl(&["get_param", "-n", "osc.*.max_rpcs_in_flight"]).trim(), "5");
}

#[test]
fn every_checksum_type_can_be_used() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    let dir = site.path_str("d");
    let lctl = |args: &[&str]| nacre_ok(&[&["lctl", "--dir", &dir], args].concat());
    let types = lctl(&["get_param", "-n", "osc.*.checksum_type"]);
    assert_eq!(
        types.trim(),
        "[crc32c] adler crc32 t10ip4K t10ip512 t10crc4K t10crc512"
    );
    let source = site.path_str("source");
    sh(&format!("head -c 3000001 /dev/urandom > {source}"));
    for name in types.split_whitespace() {
        let name = name.trim_matches(['[', ']']);
        lctl(&["set_param", &format!("osc.*.checksum_type={name}")]);
        let types = lctl(&["get_param", "-n", "osc.*.checksum_type"]);
        assert!(types.contains(&format!("[{name}]")), "{types}");
        // Writes bulk and inline data, aligned and unaligned; then reads the data from the server.
        sh(&format!(
            "cp {source} {mount}/{name} && head -c 5000 {source} | dd of={mount}/small bs=777 status=none conv=fsync"
        ));
        lctl(&["set_param", "ldlm.namespaces.*.lru_size=clear"]);
        sh(&format!(
            "cmp {source} {mount}/{name} && cmp -n 5000 {source} {mount}/small"
        ));
    }
    let error = nacre_refuses(&["lctl", "--dir", &dir, "set_param", "osc.*.checksum_type=md5"]);
    assert!(error.contains("does not support this checksum type"), "{error}");
    let log = sh(&format!("cat {dir}/nacre.log"));
    assert!(!log.contains("checksum"), "{log}");
}

#[test]
fn devices_are_listed_and_nodes_pinged() {
    let mut site = Site::new();
    site.up("d", &["--fsname", "lus"]);
    let dir = site.path_str("d");
    let devices = nacre_ok(&["lctl", "--dir", &dir, "dl"]);
    for name in [
        "mgs MGS",
        "mgc MGC",
        "mdt lus-MDT0000",
        "obdfilter lus-OST0000",
        "osc lus-OST0000-osc",
        "mdc lus-MDT0000-mdc",
        "osp lus-OST0000-osc-MDT0000 lus-MDT0000-mdtlov_UUID",
    ] {
        assert!(devices.contains(name), "{devices}");
    }
    let lctl = |args: &[&str]| nacre_ok(&[&["lctl", "--dir", &dir], args].concat());
    assert!(devices.starts_with("  0 UP mgs MGS MGS 1\n"), "{devices}");
    assert_eq!(lctl(&["device_list"]), devices);
    assert_eq!(lctl(&["--device", "MGS", "dl"]), "  0 UP mgs MGS MGS 1\n");
    assert!(lctl(&["dl", "-y"]).starts_with("devices:\n- index: 0\n  status: UP\n  type: mgs\n"));
    let error = nacre_refuses(&["lctl", "--dir", &dir, "--device", "77", "dl"]);
    assert!(error.contains("device '77' does not exist"), "{error}");
    let nid = site.nid("d");
    let osc = lctl(&["dl", "-t"])
        .lines()
        .find(|l| l.contains(" osc "))
        .map(str::to_owned);
    assert!(osc.is_some_and(|line| line.ends_with(&format!(" 1 {nid}"))));
    assert_eq!(lctl(&["list_nids"]), format!("{nid}\n"));
    assert!(nacre_ok(&["lctl", "--dir", &dir, "ping", &nid]).contains(&nid));
}

#[test]
fn lnetctl_accepts_the_present_values_of_fixed_settings() {
    let mut site = Site::new();
    site.up("d", &["--no-mount"]);
    let dir = site.path_str("d");
    let prefix = ["lnetctl", "--dir", &dir];
    let ok = |args: &[&str]| nacre_ok(&[&prefix, args].concat());
    let refuses = |args: &[&str]| nacre_refuses(&[&prefix, args].concat());
    ok(&["set", "discovery", "0"]);
    ok(&["set", "drop_asym_route", "1"]);
    assert!(refuses(&["set", "discovery", "1"]).contains("cannot be 1"));
    let shown = ok(&["global", "show"]);
    let retries = shown
        .lines()
        .find_map(|line| line.trim().strip_prefix("retry_count: "));
    ok(&["set", "retry_count", retries.expect("the value")]);
    assert!(refuses(&["set", "retry_count", "77"]).contains("--param lnet_retry_count"));
    ok(&["peer", "add", "--prim_nid", "10.0.0.1@tcp"]);
    let two_nids = [
        "peer",
        "add",
        "--prim_nid",
        "10.0.0.1@tcp",
        "--nid",
        "10.0.0.2@tcp",
    ];
    assert!(refuses(&two_nids).contains("has one NID"));
    ok(&["peer", "del", "--prim_nid", "10.0.0.1@tcp"]);
}

/// The manual's table of parameters must match a running file system. With NACRE_WRITE_MANUAL set,
/// this test writes the table.
#[test]
fn manual_lists_every_parameter() {
    let mut site = Site::new();
    site.up("d", &["--fsname", "lus"]);
    let descriptions = nacre_ok(&["lctl", "--dir", &site.path_str("d"), "help_param", "*"]);
    let mut rows = std::collections::BTreeSet::new();
    for line in descriptions.lines() {
        let (name, description) = line.split_once(": ").expect("a name and a description");
        assert!(
            description.trim() != "" && description.trim() != "(can be set)",
            "{name} has no description"
        );
        let set = if description.ends_with(" (can be set)") {
            "yes"
        } else {
            ""
        };
        let parts: Vec<&str> = name.split('.').collect();
        // The parameters of all services are the same, below the name of the service.
        let is_service = matches!(
            parts.get(..2),
            Some(["mds", "MDS"] | ["ost", "OSS"] | ["ldlm", "services"])
        );
        let service = usize::from(is_service) * 2;
        let pattern = |(i, part)| match part {
            _ if service > 0 && i == service => "*",
            part if str::contains(part, "lus-") => "*",
            part => part,
        };
        let name: Vec<&str> = parts.iter().copied().enumerate().map(pattern).collect();
        rows.insert(format!(
            "| `{}` | {set} | {} |\n",
            name.join("."),
            description.trim_end_matches(" (can be set)")
        ));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/manual/parameters.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let (head, _) = page.split_once("| name |").expect("its table");
    let expected = format!(
        "{head}| name | can be set | |\n|---|---|---|\n{}",
        rows.into_iter().collect::<Vec<_>>().concat()
    );
    if std::env::var_os("NACRE_WRITE_MANUAL").is_some() {
        std::fs::write(path, &expected).expect("the page is written");
    }
    assert_eq!(
        std::fs::read_to_string(path).expect("the page"),
        expected,
        "run this test with NACRE_WRITE_MANUAL=1"
    );
}

/// A selftest session; stops its console and nodes on drop.
struct Session {
    key: String,
    nodes: Vec<String>,
}

impl Session {
    fn lst(&self, args: &[&str]) -> fixture::CommandOutput {
        let nacre = std::process::Command::new(env!("CARGO_BIN_EXE_nacre"))
            .arg("lst")
            .args(args)
            .env("LST_SESSION", &self.key)
            .output();
        nacre.expect("nacre runs").into()
    }

    fn ok(&self, args: &[&str]) -> String {
        let result = self.lst(args);
        assert!(result.ok, "lst {args:?}: {} {}", result.out, result.err);
        result.out
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.lst(&["end_session"]);
        for nid in &self.nodes {
            self.lst(&["node", "--stop", "--listen", nid]);
        }
    }
}

#[test]
fn selftest_session_persists_across_commands() {
    let pid = std::process::id();
    let nid = |last: u8| format!("127.{}.{}.{last}@tcp", 100 + pid % 100, pid / 100 % 250);
    let session = Session {
        key: pid.to_string(),
        nodes: vec![nid(2), nid(3)],
    };
    assert!(
        session
            .lst(&["list_group"])
            .err
            .contains("no session has the key")
    );
    for node in &session.nodes {
        session.ok(&["node", "--listen", node, "--port", "7988"]);
    }
    let new_session = [
        "new_session",
        "--listen",
        &nid(1),
        "--port",
        "7988",
        "--timeout",
        "60",
        "trial",
    ];
    assert_eq!(
        session.ok(&new_session),
        "SESSION: trial FEATURES: 1 TIMEOUT: 60 FORCE: No\n"
    );
    assert!(session.lst(&new_session).err.contains("already"));
    let both_nodes = nid(2).replace(".2@", ".[2-3]@");
    assert_eq!(
        session.ok(&["add_group", "all", &both_nodes]),
        format!("{both_nodes} are added to session\n")
    );
    session.ok(&["add_group", "servers", &nid(3)]);
    assert_eq!(
        session.ok(&["list_group"]),
        "1) all\n2) servers\nTotal 2 groups\n"
    );
    let test = [
        "add_test",
        "--concurrency",
        "8",
        "--distribute",
        "2:1",
        "--from",
        "all",
        "--to",
        "servers",
    ];
    session.ok(&[&test[..], &["brw", "write", "check=full", "size=8K"]].concat());
    session.ok(&[&test[..], &["--loop", "10", "ping"]].concat());
    assert_eq!(session.ok(&["run"]), "batch is running now\n");
    let rates = session.ok(&[
        "stat", "--count", "1", "--delay", "1", "--bw", "--read", "servers",
    ]);
    assert!(
        rates.starts_with("[LNet Bandwidth of servers]\n[R] Avg: "),
        "{rates}"
    );
    assert_eq!(session.ok(&["query"]), "batch [0] is running\n");
    assert_eq!(session.ok(&["stop", "batch"]), "Batch is stopped\n");
    assert_eq!(
        session.ok(&["show_error", "all"]),
        "all:\nTotal 0 error nodes in all\n"
    );
    let output = session.ok(&["show_session"]);
    assert!(
        output.starts_with("trial ID: ") && output.contains(&format!("KEY: {pid} FEATURES: 1 NODES: 2")),
        "{output}"
    );
    assert!(
        session
            .lst(&["add_test", "--from", "all", "--to", "servers", "pong"])
            .err
            .contains("ping or brw")
    );
    assert_eq!(session.ok(&["end_session"]), "session is ended\n");
    assert!(
        session
            .lst(&["end_session"])
            .err
            .contains("no session has the key")
    );
}
