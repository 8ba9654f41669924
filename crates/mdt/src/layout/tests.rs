//! Tests of layouts.

#![allow(clippy::unwrap_used)]
use super::{LayoutRequest, StripeObject, StripeRequest, build, last_object, objects, swap};
use wire::{Errno, Fid, LOV_MAGIC_FOREIGN, LovForeignMd, OstIndex, Text, WireStruct};

fn hex(s: &str) -> Vec<u8> {
    (0..s.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap())
        .collect()
}

#[test]
fn layout_matches_a_capture_of_a_lustre_server() {
    // From the capture d2_create_write_close: /dir1/file1, one stripe on OST 1.
    let captured = hex(concat!(
        "d00bd10b01000000020000000000000002040000020000000000400001000000",
        "010400c00200000002000000000000000000000001000000"
    ));
    let object = StripeObject {
        ost: OstIndex(1),
        fid: Fid::new(0x2_c000_0401, 2, 0),
    };
    let file = Fid::new(0x2_0000_0402, 2, 0);
    assert_eq!(build(file, 4 << 20, Text::default(), &[object]), captured);
    assert_eq!(objects(&captured).unwrap(), [object]);
}

#[test]
fn swapped_layouts_name_their_files_and_have_new_generations() {
    let files = [1, 2].map(|oid| Fid::new(0x2_0000_0402, oid, 0));
    let object = |oid| StripeObject {
        ost: OstIndex(oid),
        fid: Fid::new(0x2_c000_0401, oid, 0),
    };
    let of = |i: usize| build(files[i], 1 << 20, Text::default(), &[object(i as u32)]);
    // `lmm_layout_gen`.
    let generation = |ea: &[u8]| u16::from_le_bytes([ea[30], ea[31]]);
    let with = |ea: &[u8], generation: u16| {
        let mut ea = ea.to_vec();
        ea[30..32].copy_from_slice(&generation.to_le_bytes());
        ea
    };
    for (old, new) in [([0, 0], 1), ([3, 5], 6), ([u16::MAX, 1], 2)] {
        let (a, b) = (with(&of(0), old[0]), with(&of(1), old[1]));
        let (for_a, for_b) = swap((files[0], &a), (files[1], &b)).unwrap();
        assert_eq!((generation(&for_a), generation(&for_b)), (new, new), "{old:?}");
        assert_eq!(objects(&for_a).unwrap(), [object(1)]);
        assert_eq!(for_a[8..24], of(0)[8..24], "the FID of the file");
        assert_eq!(for_b[8..24], of(1)[8..24]);
    }
    assert_eq!(swap((files[0], &of(0)), (files[1], &[])), Err(Errno::EOPNOTSUPP));
}

#[test]
fn default_layout_round_trips() {
    // From the capture t8_setstripe_dir: lfs setstripe -c 2 -S 4M.
    let request = hex("d00bd10b0100000000000000000000000000000000000000000040000200ffff");
    let striping = StripeRequest::parse(&request).unwrap().unwrap();
    assert_eq!(
        (striping.stripe_count, striping.stripe_size, striping.first),
        (2, 4 << 20, None)
    );
    assert_eq!(striping.to_default_layout(), request);
    assert_eq!(striping.stripe_count_on(1), 1);
    assert_eq!(striping.stripe_count_on(4), 2);
}

#[test]
fn overstriped_requests_may_repeat_osts_and_multiply_the_osts() {
    let overstriped = |stripe_count, osts: &[u32]| {
        let request = StripeRequest {
            stripe_count,
            overstriping: true,
            osts: osts.iter().map(|i| OstIndex(*i)).collect(),
            ..StripeRequest::default()
        };
        let parsed = StripeRequest::parse(&request.to_default_layout())?;
        assert_eq!(parsed.as_ref(), Some(&request));
        Ok(parsed.unwrap())
    };
    let counts = |count| overstriped(count, &[]).unwrap().stripe_count_on(3);
    assert_eq!(
        [0, 2, 7, 2000, 0xffff, 0xfffe, 0xffe0].map(counts),
        [1, 2, 7, 2000, 3, 6, 96]
    );
    assert_eq!(overstriped(3, &[1, 1, 0]).unwrap().stripe_count_on(3), 3);
    for count in [2001, 0xffdf] {
        assert_eq!(overstriped(count, &[]), Err(Errno::EINVAL), "{count}");
    }
    let many = overstriped(0xffe0, &[]).unwrap();
    assert_eq!((many.stripe_count_on(0), many.stripe_count_on(1000)), (0, 2000));
}

#[test]
fn request_for_a_stripe_count_does_not_inherit_overstriping() {
    let default = StripeRequest {
        stripe_count: 4,
        overstriping: true,
        ..StripeRequest::default()
    };
    let requested = |stripe_count| StripeRequest {
        stripe_count,
        ..StripeRequest::default()
    };
    assert!(requested(0).with_defaults(&default).overstriping);
    assert!(!requested(4).with_defaults(&default).overstriping);
}

#[test]
fn foreign_layouts_are_stored_as_they_are_and_have_no_objects() {
    let head = |lfm_length| LovForeignMd {
        lfm_magic: LOV_MAGIC_FOREIGN,
        lfm_length,
        lfm_type: 0xda05,
        lfm_flags: 0xda08,
    };
    let foreign = |lfm_length, value: &[u8]| [&head(lfm_length).to_bytes()[..], value].concat();
    // A length that equals the pattern of overstriped files is no pattern.
    let value = [b'v'; 0x201];
    let ea = foreign(0x201, &value);
    let stored = Some(LayoutRequest::Foreign(ea.clone().into()));
    assert_eq!(LayoutRequest::parse(&ea).unwrap(), stored);
    let longer = [&ea[..], b"rest"].concat();
    assert_eq!(
        LayoutRequest::parse(&longer).unwrap(),
        stored,
        "bytes behind the value are dropped"
    );
    assert_eq!(objects(&ea).unwrap(), []);
    assert!(!super::is_overstriped(&ea) && super::is_foreign(&ea));
    assert_eq!(last_object(&ea, 5), Ok(None));
    let file = Fid::new(0x2_0000_0402, 2, 0);
    assert_eq!(swap((file, &ea), (file, &ea)), Err(Errno::EOPNOTSUPP));
    for bad in [
        foreign(0, b""),
        foreign(9, b"short"),
        foreign(u32::MAX, b"x"),
        foreign(65536, &[0; 65536]),
    ] {
        assert_eq!(LayoutRequest::parse(&bad), Err(Errno::EINVAL));
    }
    assert_eq!(
        StripeRequest::parse(&ea),
        Err(Errno::EOPNOTSUPP),
        "no default of a directory"
    );
}

#[test]
fn pattern_states_overstriping_if_an_ost_has_several_objects() {
    let is_overstriped_on = |osts: &[u32]| {
        let object = |(oid, ost): (u32, &u32)| StripeObject {
            ost: OstIndex(*ost),
            fid: Fid::new(0x2_c000_0401, oid, 0),
        };
        let objects: Vec<_> = (1..).zip(osts).map(object).collect();
        let ea = build(Fid::new(0x2_0000_0402, 2, 0), 0, Text::default(), &objects);
        assert_eq!(super::objects(&ea).unwrap(), objects);
        super::is_overstriped(&ea)
    };
    assert!(is_overstriped_on(&[0, 1, 0]) && is_overstriped_on(&[1, 1]));
    assert!(!is_overstriped_on(&[0, 1, 2]) && !is_overstriped_on(&[0]));
    assert!(!super::is_overstriped(&[]));
}

#[test]
fn last_object_has_the_last_byte() {
    const MIB: u64 = 1 << 20;
    let file = Fid::new(0x2_0000_0400, 1, 0);
    let objects = [1, 2, 3].map(|ost| StripeObject {
        ost: OstIndex(ost),
        fid: Fid::new(0x1_0000_0000, ost, 0),
    });
    let ea = build(file, 1 << 20, Text::default(), &objects);
    let cases = [
        (1, Some((0, 1))),
        (MIB, Some((0, MIB))),
        (MIB + 1, Some((1, 1))),
        (3 * MIB, Some((2, MIB))),
        (3 * MIB + 1, Some((0, MIB + 1))),
        (8 * MIB, Some((1, 3 * MIB))),
        (0, None),
    ];
    for (size, expected) in cases {
        let expected = expected.map(|(i, size)| (objects[i], size));
        assert_eq!(last_object(&ea, size), Ok(expected), "{size}");
    }
    assert_eq!(last_object(&[], 1), Ok(None));
}

#[test]
fn listed_osts_keep_their_order_and_may_not_repeat() {
    let striping = StripeRequest {
        stripe_count: 2,
        osts: vec![OstIndex(3), OstIndex(1)],
        ..StripeRequest::default()
    };
    let ea = striping.to_default_layout();
    assert_eq!(StripeRequest::parse(&ea).unwrap().unwrap().osts, striping.osts);
    let twice = StripeRequest {
        stripe_count: 2,
        osts: vec![OstIndex(1); 2],
        ..StripeRequest::default()
    }
    .to_default_layout();
    assert_eq!(StripeRequest::parse(&twice), Err(Errno::EINVAL));
    assert_eq!(StripeRequest::parse(&ea[..ea.len() - 1]), Err(Errno::EINVAL));
}

#[test]
fn unimplemented_layouts_are_errors() {
    let mut lum = StripeRequest {
        stripe_count: 1,
        ..StripeRequest::default()
    }
    .to_default_layout()
    .to_vec();
    // Byte 2 is in the magic number, byte 4 in the pattern, byte 24 in the stripe size.
    lum[4] = 0x40;
    assert_eq!(StripeRequest::parse(&lum), Err(Errno::EOPNOTSUPP));
    lum[4] = 1;
    lum[24] = 1;
    assert_eq!(StripeRequest::parse(&lum), Err(Errno::EINVAL));
    lum[2] = 0xd6;
    assert_eq!(StripeRequest::parse(&lum), Err(Errno::EOPNOTSUPP));
    assert_eq!(StripeRequest::parse(&[0; 8]), Err(Errno::EINVAL));
}

#[test]
fn empty_request_is_none_and_defaults_fill_unspecified_values() {
    let nothing = hex("d00bd10b0100000000000000000000000000000000000000000000000000ffff");
    assert_eq!(StripeRequest::parse(&nothing), Ok(None));
    let dir = StripeRequest {
        stripe_size: 1 << 20,
        stripe_count: 2,
        ..StripeRequest::default()
    };
    let file = StripeRequest {
        stripe_count: 3,
        ..StripeRequest::default()
    };
    assert_eq!(
        file.with_defaults(&dir),
        StripeRequest {
            stripe_size: 1 << 20,
            stripe_count: 3,
            ..StripeRequest::default()
        }
    );
}
