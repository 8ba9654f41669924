//! `nacre lfs` on a mount: find, servers, names and the switches of getstripe and setstripe.

use crate::fixture::{Site, nacre, nacre_ok, nacre_refuses, sh};

#[test]
fn find_selects_files_by_attributes_and_layout() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "3"]);
    nacre_ok(&[
        "lfs",
        "setstripe",
        "-c",
        "2",
        "-o",
        "2,0",
        &format!("{mount}/wide"),
    ]);
    sh(&format!(
        "cd {mount}; mkdir -p dir/sub; head -c 3000000 /dev/zero > dir/big; echo x > 'dir/sub/a b'
         ln -s big dir/link; chmod 600 dir/big; touch -d '3 days ago' dir/sub/*; ln wide dir/wide2"
    ));
    let find = |tests: &str| {
        let output = sh(&format!(
            "cd {mount}; {} lfs find . {tests}",
            env!("CARGO_BIN_EXE_nacre")
        ));
        output
            .lines()
            .map(|l| l.trim_start_matches("./").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        find(""),
        [
            ".",
            "dir",
            "dir/big",
            "dir/link",
            "dir/sub",
            "dir/sub/a b",
            "dir/wide2",
            "wide"
        ]
    );
    for (tests, expected) in [
        ("-name 'b*'", &["dir/big"][..]),
        ("--name='b*' -type f", &["dir/big"]),
        ("-type d -mindepth 1", &["dir", "dir/sub"]),
        ("-t l", &["dir/link"]),
        ("-size +2M", &["dir/big"]),
        ("-type f ! -size +2M -mtime -1", &["dir/wide2", "wide"]),
        ("-mtime +2", &["dir/sub/a b"]),
        ("-newer dir/sub/a\\ b -name '*ig'", &["dir/big"]),
        ("-perm 600", &["dir/big"]),
        ("-links 2 -type f", &["dir/wide2", "wide"]),
        ("-type f -stripe-count 2", &["dir/wide2", "wide"]),
        ("-c +1 -maxdepth 1", &["wide"]),
        ("-stripe-index 2 -maxdepth 1 -name w*", &["wide"]),
        ("-ost nacre-OST0002_UUID -name wide", &["wide"]),
        ("-ost 1 -name wide", &[]),
        ("-user root -group 0 -name wide", &["wide"]),
        ("! -user 0", &[]),
    ] {
        if tests.contains("root") && !crate::fixture::is_root() {
            continue;
        }
        if tests.contains("! -user") && !crate::fixture::is_root() {
            continue;
        }
        assert_eq!(find(tests), expected, "{tests}");
    }
    assert_eq!(
        sh(&format!(
            "cd {mount}; {} lfs find dir -type f -print0 | tr '\\0' ,",
            env!("CARGO_BIN_EXE_nacre")
        )),
        "dir/big,dir/sub/a b,dir/wide2,"
    );
    let line = &find("-name big -ls")[0];
    let fields: Vec<&str> = line.split('\t').collect();
    assert_eq!(fields.len(), 9, "{line}");
    assert_eq!(
        (fields[2], fields[3], fields[6], fields[8]),
        ("-rw-------", "1", "3000000", "./dir/big")
    );

    assert!(nacre_refuses(&["lfs", "find", &mount, "-size", "many"]).contains("-size many"));
    assert!(nacre_refuses(&["lfs", "find", &mount, "-btime", "1"]).contains("not available"));
    assert!(nacre_refuses(&["lfs", "find", "-name", "x"]).contains("name a directory"));
    assert!(nacre_refuses(&["lfs", "find", &format!("{mount}/none")]).contains("/none"));
    assert!(nacre(&["lfs", "find", "--help"]).out.contains("-stripe-count"));
}

/// Waits until a mount is connected to its servers; returns the output of `lfs check`.
fn wait_until_connected(servers: &str, mount: &str) -> String {
    loop {
        let result = nacre(&["lfs", "check", servers, mount]);
        if result.ok {
            return result.out;
        }
    }
}

#[test]
fn servers_and_names_of_a_mount_are_listed() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "2", "--fsname", "lus"]);
    assert_eq!(
        nacre_ok(&["lfs", "osts", &mount]),
        "OBDS:\n0: lus-OST0000_UUID ACTIVE\n1: lus-OST0001_UUID ACTIVE\n"
    );
    assert_eq!(
        nacre_ok(&["lfs", "mdts", &mount]),
        "MDTS:\n0: lus-MDT0000_UUID ACTIVE\n"
    );
    let checked = wait_until_connected("all", &mount);
    for name in ["lus-OST0000-osc-", "lus-OST0001-osc-", "lus-MDT0000-mdc-", "MGC"] {
        let line = checked.lines().find(|line| line.starts_with(name));
        assert!(line.is_some_and(|l| l.ends_with(" active.")), "{checked}");
    }
    assert_eq!(nacre_ok(&["lfs", "check", "osts", &mount]).lines().count(), 2);

    assert_eq!(nacre_ok(&["lfs", "getname", "-n", &mount]), "lus\n");
    let instance = nacre_ok(&["lfs", "getname", "-i", &mount]);
    let expected = format!("lus-{} {mount}\n", instance.trim());
    assert_eq!(nacre_ok(&["lfs", "getname", &mount]), expected);
    assert_eq!(nacre_ok(&["lfs", "getname", "-u", &mount]).trim().len(), 36);
    assert!(nacre_ok(&["lfs", "df", "-vl", "-ih", &mount]).contains("lus-OST0001_UUID"));
    let json = |args: &[&str]| -> serde_json::Value {
        let text = nacre_ok(&[&["lfs"], args, &["--json", &mount]].concat());
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    };
    let df = json(&["df", "-o"]);
    assert_eq!(df[0]["mountpoint"], mount.as_str());
    assert_eq!(df[0]["targets"].as_array().map(Vec::len), Some(2), "{df}");
    assert_eq!(df[0]["targets"][1]["uuid"], "lus-OST0001_UUID");
    assert!(
        df[0]["targets"][1]["space"]["total_kib"].as_u64() > Some(0),
        "{df}"
    );
    for (command, uuid) in [("osts", "lus-OST0000_UUID"), ("mdts", "lus-MDT0000_UUID")] {
        let listed = json(&[command]);
        let first = &listed[0]["targets"][0];
        assert_eq!(
            (&first["uuid"], &first["index"]),
            (&uuid.into(), &0.into()),
            "{listed}"
        );
    }
    let checked = json(&["check", "all"]);
    let targets = checked[0]["targets"].as_array().expect("a list");
    assert!(
        targets.len() == 4 && targets.iter().all(|t| t["connected"] == true),
        "{checked}"
    );
}

#[test]
fn find_prints_fields_and_tests_pools_and_projects() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "2"]);
    let file = format!("{mount}/file");
    nacre_ok(&["lfs", "setstripe", "-c", "2", "-S", "1M", "-i", "1", &file]);
    sh(&format!(
        "printf 12345 > {file}; chmod 640 {file}; touch -d @1000000000.25 {file}; ln -s file {mount}/link"
    ));
    let find = |args: &[&str]| nacre_ok(&[&["lfs", "find", &mount], args].concat());
    let fid = nacre_ok(&["lfs", "path2fid", &file]);
    let fid = fid.trim();
    let format = r"%p|%s|%y|%m|%n|%T@|%Lc|%LS|%Li|%Lo|%Lp|%LP|%LF\n";
    assert_eq!(
        find(&["-type", "f", "-printf", format]),
        format!("{file}|5|f|640|1|1000000000.250000000|2|1048576|1|1,0||0|{fid}\n")
    );
    let link = find(&["-type", "l", "-printf", r"%y %LF %Lc\n"]);
    assert!(
        link.starts_with("l [0x") && link.ends_with(" 0\n") && !link.contains(fid),
        "{link}"
    );
    assert_eq!(
        find(&["-maxdepth", "0", "-printf", "%y %LF"]),
        format!("d {}", nacre_ok(&["lfs", "path2fid", &mount]).trim())
    );
    assert_eq!(find(&["-type", "f", "-pool", ""]), format!("{file}\n"));
    assert_eq!(find(&["-pool", "fast"]), "");
    assert_eq!(find(&["-type", "f", "-projid", "0"]), format!("{file}\n"));
    assert_eq!(find(&["-projid", "7"]), "");
}

#[test]
fn df_selects_targets_and_units() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "2", "--fsname", "lus"]);
    let df = |args: &[&str]| nacre_ok(&[&["lfs", "df"], args].concat());
    let names = |text: &str| -> Vec<String> {
        let first = text.lines().filter_map(|line| line.split_whitespace().next());
        first.map(str::to_owned).collect()
    };
    assert_eq!(
        names(&df(&["-m", &mount])),
        ["UUID", "lus-MDT0000_UUID", "filesystem_summary:"]
    );
    assert_eq!(
        names(&df(&["-o1", "-N", &mount])),
        ["lus-OST0001_UUID", "filesystem_summary:"]
    );
    assert_eq!(names(&df(&["-s", "-N", &mount])), ["filesystem_summary:"]);
    assert_eq!(names(&df(&["-o", "-m0", &mount])).len(), 5);
    let decimal = df(&["-H", "-s", &mount]);
    assert!(decimal.contains(" bytes "), "{decimal}");
    let error = nacre_refuses(&["lfs", "df", "--pool", "fast", &mount]);
    assert!(error.contains("no OST pools"), "{error}");
}

#[test]
fn check_names_a_server_that_is_gone() {
    let mut site = Site::new();
    site.serve("mgs", &["--mgs"], &[]);
    let mgs = site.nid("mgs");
    let target = |kind: &str| {
        [
            kind.to_owned(),
            "--fsname=lus".into(),
            "--index=0".into(),
            format!("--mgsnode={mgs}"),
        ]
    };
    for (name, kind) in [("mdt", "--mdt"), ("ost", "--ost")] {
        let options = target(kind);
        site.serve(name, &options.each_ref().map(String::as_str), &[]);
    }
    let mount = site.mount(&format!("{mgs}:/lus"), "mnt", &[]);
    wait_until_connected("osts", &mount);
    site.kill("ost");
    let error = loop {
        let result = nacre(&["lfs", "check", "osts", &mount]);
        if !result.ok {
            break result.err;
        }
    };
    assert!(
        error.contains("lus-OST0000-osc-") && error.contains("is not connected to lus-OST0000_UUID"),
        "{error}"
    );
    nacre_ok(&["lfs", "check", "mdts", &mount]);
}

#[test]
fn layouts_are_copied_placed_and_shown_by_field() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "3"]);
    let path = |name: &str| format!("{mount}/{name}");
    let lfs = |args: &[&str]| nacre_ok(&[&["lfs"], args].concat());
    lfs(&["setstripe", "-o", "2,0", "-S", "1M", &path("placed")]);
    let shown = lfs(&["getstripe", &path("placed")]);
    let osts: Vec<&str> = shown
        .lines()
        .filter_map(|line| line.strip_prefix('\t')?.split_whitespace().next())
        .collect();
    assert_eq!(osts, ["obdidx", "2", "0"], "{shown}");
    lfs(&["setstripe", "--copy", &path("placed"), &path("copy")]);
    assert_eq!(
        lfs(&["getstripe", "-c", "-S", &path("copy")]),
        "lmm_stripe_count:  2\nlmm_stripe_size:   1048576\n"
    );
    let fid = lfs(&["path2fid", &path("copy")]);
    assert_eq!(lfs(&["getstripe", "-F", &path("copy")]), fid);
    let root = lfs(&["path2fid", &mount]);
    assert_eq!(lfs(&["getstripe", "-F", "-d", &mount]), root);
    assert_eq!(lfs(&["getstripe", "-L", &path("copy")]), "raid0\n");
    assert_eq!(lfs(&["getstripe", "--component-count", &path("copy")]), "0\n");
    assert_eq!(
        lfs(&["getstripe", "-d", &mount]),
        "stripe_count:  1 stripe_size:   4194304 pattern:       raid0 stripe_offset: -1\n\n"
    );
    let yaml = lfs(&["getstripe", "-y", &path("placed")]);
    assert!(
        yaml.contains("lmm_objects:\n      - l_ost_idx: 2\n        l_fid:     0x"),
        "{yaml}"
    );
    sh(&format!("mkdir -p {mount}/dir/sub; touch {mount}/dir/sub/deep"));
    assert!(!lfs(&["getstripe", &path("dir")]).contains("deep"));
    assert!(lfs(&["getstripe", "-r", &path("dir")]).contains("/dir/sub/deep\n"));
    let on_ost = lfs(&["getstripe", "-r", "-q", "-O", "2", &mount]);
    assert!(
        on_ost.contains("/placed\n") && !on_ost.contains("/dir\n"),
        "{on_ost}"
    );

    assert_eq!(lfs(&["getstripe", "-m", &path("copy")]), "0\n");
    assert_eq!(lfs(&["getstripe", "--mdt-index", "-d", &mount]), "0\n");
    assert_eq!(lfs(&["getstripe", "-z", &path("copy")]), "0\n");
    assert_eq!(
        lfs(&["getstripe", "-I", "-E", "--component-flags", &path("copy")]),
        "lcme_id:             0\nlcme_flags:          init\nlcme_extent.e_end:   EOF\n"
    );
    let all = lfs(&["getstripe", &path("copy")]);
    for selects in [
        "-I0",
        "-E+1G",
        "-EEOF",
        "--component-start=0",
        "--mirror-index=1",
        "--mirror-id=-2",
    ] {
        assert_eq!(lfs(&["getstripe", selects, &path("copy")]), all, "{selects}");
    }
    for hides in [
        "-I1",
        "-E-1G",
        "--component-start=+0",
        "--component-flags=^init",
        "--mirror-id=1",
    ] {
        assert_eq!(lfs(&["getstripe", hides, &path("copy")]), "", "{hides}");
    }
    assert_eq!(lfs(&["getstripe", "!", "--mirror-index=1", &path("copy")]), "");
    sh(&format!(
        "cd {mount}; ln -s copy link; ln -s dir dirlink; mknod bare p"
    ));
    let without_path = |text: String| text.split_once('\n').map(|(_, rest)| rest.to_owned());
    assert_eq!(
        without_path(lfs(&["getstripe", &path("link")])),
        without_path(all)
    );
    assert_eq!(
        lfs(&["getstripe", "-d", "--no-follow", &path("link")]),
        "has no stripe info\n\n"
    );
    assert!(lfs(&["getstripe", "-r", &path("dirlink")]).contains("/dirlink/sub/deep\n"));
    assert!(!lfs(&["getstripe", "-r", "--no-follow", &path("dirlink")]).contains("deep"));
    let fid = lfs(&["path2fid", &path("bare")]);
    assert_eq!(
        lfs(&["getstripe", "-F", "-m", &path("bare")]),
        format!("lmm_fid:           {fid}mdt_index:         0\n")
    );
    let error = nacre_refuses(&["lfs", "getstripe", "-Ix", &path("copy")]);
    assert!(
        error.contains("--component-id: 'x' is not the id of a component"),
        "{error}"
    );

    let error = nacre_refuses(&["lfs", "setstripe", "-o", "7", &path("none")]);
    assert!(error.contains("does the OST exist"), "{error}");
    let error = nacre_refuses(&["lfs", "setstripe", "-c", "3", "-o", "0,1", &path("none")]);
    assert!(error.contains("leave -c or -C out"), "{error}");
    let error = nacre_refuses(&["lfs", "setstripe", "--copy", &path("dir"), &path("none")]);
    assert!(error.contains("no layout of its own"), "{error}");
    for (osts, part) in [("1-0", "from high to low"), ("0-65535", "more than 2000 OSTs")] {
        let error = nacre_refuses(&["lfs", "setstripe", "-o", osts, &path("none")]);
        assert!(error.contains(part), "{error}");
    }
    assert!(!std::path::Path::new(&path("none")).exists());
    assert!(nacre_refuses(&["lfs", "find", &mount, "-ost", "1-0"]).contains("from high to low"));
}

#[test]
fn overstriped_files_have_several_stripes_on_an_ost() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "2"]);
    let path = |name: &str| format!("{mount}/{name}");
    let lfs = |args: &[&str]| nacre_ok(&[&["lfs"], args].concat());
    lfs(&["setstripe", "-C", "5", "-S", "64K", &path("five")]);
    assert_eq!(
        lfs(&["getstripe", "-c", "-L", &path("five")]),
        "lmm_stripe_count:  5\nlmm_pattern:       raid0,overstriped\n"
    );
    sh(&format!(
        "cd {mount}; head -c 1000000 /dev/urandom > five; cp five six; cmp five six; truncate -s 300000 five
         cmp -n 300000 five six; [ $(stat -c %s five) = 300000 ]"
    ));
    lfs(&["setstripe", "-C", "-3", &path("all")]);
    assert_eq!(lfs(&["getstripe", "-c", &path("all")]), "6\n");
    lfs(&["setstripe", "-o", "1,1,0", &path("listed")]);
    let osts = |name: &str| lfs(&["find", &path(name), "-printf", "%Lc %Lo"]);
    assert_eq!(osts("listed"), "3 1,1,0");
    lfs(&["setstripe", "--copy", &path("five"), &path("copy")]);
    assert_eq!(lfs(&["getstripe", "-L", &path("copy")]), "raid0,overstriped\n");
    sh(&format!("mkdir {mount}/dir"));
    lfs(&["setstripe", "--overstripe-count", "-2", &path("dir")]);
    assert_eq!(
        lfs(&["getstripe", "-d", &path("dir")]),
        "stripe_count:  -2 stripe_size:   4194304 pattern:       raid0,overstriped stripe_offset: -1\n\n"
    );
    sh(&format!("touch {mount}/dir/new"));
    assert_eq!(lfs(&["getstripe", "-c", &path("dir/new")]), "4\n");

    for (option, count) in [("-C", "-33"), ("-C", "2001"), ("-c", "-2")] {
        let error = nacre_refuses(&["lfs", "setstripe", option, count, &path("none")]);
        assert!(error.contains(&format!("not {count}")), "{error}");
    }
    let error = nacre_refuses(&["lfs", "setstripe", "-C", "4", "-o", "0,0", &path("none")]);
    assert!(error.contains("leave -c or -C out"), "{error}");
}

#[test]
fn foreign_layouts_are_created_shown_found_and_removed() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    let path = |name: &str| format!("{mount}/{name}");
    let lfs = |args: &[&str]| nacre_ok(&[&["lfs"], args].concat());
    let foreign = ["setstripe", "--foreign=symlink", "--flags", "0xda08"];
    lfs(&[&foreign[..], &["--xattr", "uuid@uuid", &path("link")]].concat());
    lfs(&["setstripe", "--foreign", "-x", "elsewhere", &path("none")]);
    sh(&format!("cd {mount}; echo data > plain; mkdir dir"));
    let shown = |name: &str, text: &str| format!("{}\n{text}", path(name));
    assert_eq!(
        lfs(&["getstripe", &path("none")]),
        shown("none", "lfm_value:     'elsewhere'\n\n")
    );
    let text = "lfm_magic:         0x0BD70BD0\nlfm_length:          9\nlfm_type:          0x0000DA05 (symlink)\n\
         lfm_flags:          0x0000DA08\nlfm_value:     'uuid@uuid'\n\n";
    assert_eq!(lfs(&["getstripe", "-v", &path("link")]), shown("link", text));
    let fid = lfs(&["path2fid", &path("link")]);
    assert_eq!(lfs(&["getstripe", "-F", &path("link")]), fid);
    let find = |test: &[&str]| lfs(&[&["find", &mount, "-type", "f"], test].concat());
    assert_eq!(
        find(&["-foreign"]),
        format!("{}\n{}\n", path("link"), path("none"))
    );
    assert_eq!(find(&["--foreign=symlink"]), format!("{}\n", path("link")));
    assert_eq!(find(&["!", "-foreign"]), format!("{}\n", path("plain")));

    // Its data is elsewhere; the file itself is ordinary.
    let failures = [
        ("cat link", "No data available"),
        ("echo x >> link", "Bad file descriptor"),
        ("truncate -s 9 link", "No data available"),
    ];
    for (command, error) in failures {
        let shown = sh(&format!("cd {mount}; ({command}) 2>&1 && exit 1; true"));
        assert!(shown.contains(error), "{command}: {shown}");
    }
    sh(&format!(
        "cd {mount}; chmod 600 link; mv link moved; [ $(stat -c %s-%a moved) = 0-600 ]"
    ));
    nacre_refuses(&["lfs", "setstripe", "-c", "1", &path("moved")]);

    let error = nacre_refuses(&["lfs", "unlink_foreign", &path("plain")]);
    assert!(error.contains("no foreign layout"), "{error}");
    lfs(&["unlink_foreign", &path("moved")]);
    sh(&format!("cd {mount}; rm none; [ \"$(echo *)\" = 'dir plain' ]"));
    for (args, part) in [
        (&["--foreign=s3", "-x", "v"][..], "not a foreign type"),
        (&["--foreign", "--flags", "foo", "-x", "v"], "are not flags"),
    ] {
        let error = nacre_refuses(&[&["lfs", "setstripe"], args, &[&path("bad")]].concat());
        assert!(error.contains(part), "{error}");
    }
    for (args, part) in [
        (&["--foreign"][..], "--xattr"),
        (&["-x", "v"], "--foreign"),
        (&["--foreign", "-x", "v", "-c", "1"], "cannot be used with"),
    ] {
        let result = nacre(&[&["lfs", "setstripe"], args, &[&path("bad")]].concat());
        assert!(!result.ok && result.err.contains(part), "{}", result.err);
    }
    let error = nacre_refuses(&["lfs", "setstripe", "--foreign", "-x", "v", &path("dir")]);
    assert!(error.contains("directory"), "{error}");
    assert!(!std::path::Path::new(&path("bad")).exists());
}

#[test]
fn getstripe_continues_after_errors_and_prints_names_as_bytes() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    sh(&format!("cd {mount}; touch a $'b\\xff' c"));
    let (first, last) = (format!("{mount}/a"), format!("{mount}/c"));
    let missing = [format!("{mount}/none"), format!("{mount}/other")];
    let result = nacre(&["lfs", "getstripe", "-c", &missing[0], &first, &missing[1], &last]);
    assert!(!result.ok);
    assert_eq!(result.out, "1\n1\n");
    let errors: Vec<&str> = result.err.lines().collect();
    assert_eq!(errors.len(), 2, "{}", result.err);
    for (error, path) in errors.iter().zip(&missing) {
        assert!(
            error.starts_with(&format!("nacre: lfs getstripe: {path}: ")),
            "{error}"
        );
    }
    let names = sh(&format!(
        "{} lfs getstripe -r {mount} | grep -a '^/' | od -An -c | tr -d ' \\n'",
        env!("CARGO_BIN_EXE_nacre")
    ));
    assert!(names.contains("/b377\\n"), "{names}");
}

#[test]
fn find_abbreviates_a_path_that_is_too_long() {
    let site = Site::new();
    let top = site.path_str("tree");
    let name = "n".repeat(250);
    sh(&format!(
        "mkdir {top}; cd {top}; for i in $(seq 18); do mkdir {name}; cd -P {name}; done"
    ));
    let result = nacre(&["lfs", "find", &top]);
    assert!(!result.ok);
    assert!(
        result.err.contains("[...]") && result.err.len() < 1000,
        "{}",
        result.err
    );
    sh(&format!("rm -r {top}"));
}
