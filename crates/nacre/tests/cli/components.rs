//! `nacre lfs setstripe` and `getstripe` for files with several components, on OSTs and on the MDT.

use crate::fixture::{Site, nacre_ok, nacre_refuses, sh};

#[test]
fn files_have_components_that_grow() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "2"]);
    let path = |name: &str| format!("{mount}/{name}");
    let lfs = |args: &[&str]| nacre_ok(&[&["lfs"], args].concat());
    sh(&format!("mkdir {mount}/dir"));
    let components = [
        "-E", "1M", "-c", "1", "-E", "64M", "-c", "2", "-S", "2M", "-E", "-1", "-c", "-1",
    ];
    lfs(&[&["setstripe"], &components[..], &[&path("dir")]].concat());
    let shown = lfs(&["getstripe", "-d", &path("dir")]);
    for line in [
        "lcm_entry_count:   3",
        "lcme_extent.e_end:   67108864",
        "lcme_extent.e_end:   EOF",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
    // A write creates the objects of the components that it touches.
    let counts = |name: &str| lfs(&["getstripe", "--component-flags=init", "-I", &path(name)]);
    sh(&format!("echo small > {mount}/dir/f"));
    assert_eq!(counts("dir/f"), "1\n");
    sh(&format!(
        "head -c 3000000 /dev/urandom > {mount}/dir/f; cp {mount}/dir/f {mount}/dir/g; cmp {mount}/dir/f {mount}/dir/g"
    ));
    assert_eq!(counts("dir/g"), "1\n2\n");
    sh(&format!(
        "echo far | dd of={mount}/dir/f bs=1 seek=100000000 conv=notrunc status=none"
    ));
    assert_eq!(counts("dir/f"), "1\n2\n3\n");
    let size = lfs(&["getstripe", "-S", "-I2", &path("dir/f")]);
    assert_eq!(size, "2097152\n");
    // Copies of the layout, and of the default.
    lfs(&["setstripe", "--copy", &path("dir/f"), &path("copy")]);
    assert_eq!(counts("copy"), "1\n");
    lfs(&["setstripe", "-d", &path("dir")]);
    sh(&format!("touch {mount}/dir/plain"));
    assert!(!lfs(&["getstripe", &path("dir/plain")]).contains("lcm_"));
    // A layout with an end: a write beyond it fails.
    lfs(&[
        "setstripe",
        "-E",
        "1M",
        "-i",
        "1",
        "-E",
        "2M",
        "-o",
        "1,0",
        &path("bounded"),
    ]);
    sh(&format!(
        "! head -c 3000000 /dev/zero > {mount}/bounded; [ $(stat -c %s {mount}/bounded) = 2097152 ]"
    ));
    assert_eq!(lfs(&["find", &path("bounded"), "-printf", "%Lo"]), "1,0");

    for (args, reason) in [
        (&["-E", "100"][..], "multiple of 64K"),
        (&["-E", "2M", "-E", "1M"], "not above"),
        (&["-E", "-1", "-E", "2M"], "no end"),
        (&["-E", "1M", "-S", "2M"], "stripe size"),
        (&["-E", "1M", "-i", "7"], "does the OST exist"),
        (&["--component-add", "-E", "1M"], "does not change the components"),
    ] {
        let error = nacre_refuses(&[&["lfs", "setstripe"], args, &[&path("none")]].concat());
        assert!(error.contains(reason), "{args:?}: {error}");
    }
    assert!(!std::path::Path::new(&path("none")).exists());
}

#[test]
fn small_files_have_their_data_on_the_mdt() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "1"]);
    let path = |name: &str| format!("{mount}/{name}");
    let lfs = |args: &[&str]| nacre_ok(&[&["lfs"], args].concat());
    let on_mdt = [
        "setstripe",
        "-E",
        "64K",
        "-L",
        "mdt",
        "-E",
        "-1",
        "-c",
        "1",
        "-S",
        "4M",
    ];
    lfs(&[&on_mdt[..], &[&path("dom1")]].concat());
    sh(&format!(
        "echo domdata > {mount}/dom1; [ \"$(cat {mount}/dom1)\" = domdata ]"
    ));
    // As in the capture t1_dom.
    let expected = format!(
        "{}
  lcm_layout_gen:    2
  lcm_mirror_count:  1
  lcm_entry_count:   2
    lcme_id:             1
    lcme_mirror_id:      0
    lcme_flags:          init
    lcme_extent.e_start: 0
    lcme_extent.e_end:   65536
      lmm_stripe_count:  0
      lmm_stripe_size:   65536
      lmm_pattern:       mdt
      lmm_layout_gen:    0
      lmm_mdt_index:     0

    lcme_id:             2
    lcme_mirror_id:      0
    lcme_flags:          0
    lcme_extent.e_start: 65536
    lcme_extent.e_end:   EOF
      lmm_stripe_count:  1
      lmm_stripe_size:   4194304
      lmm_pattern:       raid0
      lmm_layout_gen:    0
      lmm_stripe_offset: -1

",
        path("dom1")
    );
    assert_eq!(lfs(&["getstripe", &path("dom1")]), expected);
    // A directory's default, a file that grows into the second component, and a copy of a layout.
    sh(&format!("mkdir {mount}/dir"));
    lfs(&[&on_mdt[..], &[&path("dir")]].concat());
    assert!(lfs(&["getstripe", "-d", &path("dir")]).contains("lmm_pattern:       mdt"));
    sh(&format!(
        "head -c 200000 /dev/urandom > {mount}/dir/f; cp {mount}/dir/f {mount}/dir/g; cmp {mount}/dir/f {mount}/dir/g;
         truncate -s 1000 {mount}/dir/g; head -c 1000 {mount}/dir/f | cmp - {mount}/dir/g; rm {mount}/dir/f"
    ));
    lfs(&["setstripe", "--copy", &path("dir/g"), &path("copy")]);
    assert!(lfs(&["getstripe", &path("copy")]).contains("lmm_pattern:       mdt"));
    // A file without an OST.
    lfs(&["setstripe", "-E", "128K", "-L", "mdt", &path("only")]);
    sh(&format!(
        "! head -c 200000 /dev/zero > {mount}/only; [ $(stat -c %s {mount}/only) = 131072 ]"
    ));
    for (args, reason) in [
        (&["-L", "mdt"][..], "put -E before"),
        (&["-E", "1M", "-E", "2M", "-L", "mdt"], "first component"),
        (&["-E", "1M", "-L", "mdt", "-c", "2"], "no stripes"),
        (&["-E", "1G", "-L", "mdt"], "rejects this layout"),
    ] {
        let error = nacre_refuses(&[&["lfs", "setstripe"], args, &[&path("none")]].concat());
        assert!(error.contains(reason), "{args:?}: {error}");
    }
}
