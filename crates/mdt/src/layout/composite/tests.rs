//! Tests of composite layouts.

#![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]
use super::{
    ComponentRequest, EOF, ON_MDT_MAX, add_objects, check, limit_on_mdt, missing, new_layout, parse_request,
    raise_generation, request_of, to_default_layout,
};
use crate::layout::{
    LayoutRequest, StripeObject, StripePlace, StripeRequest, components, data_max, is_overstriped,
    last_object, objects, placed_objects, replayed, swap,
};
use bytes::Bytes;
use std::ops::Range;
use wire::{
    Errno, Fid, LCME_FL_EXTENSION, LCME_FL_INIT, LOV_MAGIC_COMP_V1, OstIndex,
    striping::{CompositeLayout, LovLayout, PlainLayout},
};

const MIB: u64 = 1 << 20;
const FILE: Fid = Fid::new(0x2_0000_0402, 0x7f0, 0);

fn hex(s: &str) -> Vec<u8> {
    let byte = |i| u8::from_str_radix(&s[i..i + 2], 16).unwrap();
    (0..s.len()).step_by(2).map(byte).collect()
}

fn striping(stripe_size: u32, stripe_count: u16) -> StripeRequest {
    StripeRequest {
        stripe_size,
        stripe_count,
        ..StripeRequest::default()
    }
}

fn component(extent: Range<u64>, striping: StripeRequest) -> ComponentRequest {
    ComponentRequest {
        extent,
        on_mdt: false,
        striping,
    }
}

fn object(ost: u32, oid: u32) -> StripeObject {
    StripeObject {
        ost: OstIndex(ost),
        fid: Fid::new(0x2_4000_0400, oid, 0),
    }
}

/// `lfs setstripe -E 1M -c 1 -E -1 -c 2`, with all values.
fn two() -> Vec<ComponentRequest> {
    vec![
        component(0..MIB, striping(1 << 20, 1)),
        component(MIB..EOF, striping(4 << 20, 2)),
    ]
}

fn build(layout: &CompositeLayout) -> Bytes {
    LovLayout::Composite(layout.clone()).build()
}

/// [`two`] with the first component's object.
fn new_file() -> CompositeLayout {
    let mut layout = new_layout(FILE, &two(), 0);
    add_objects(&mut layout, 0, &[object(0, 0x3f2)]);
    layout
}

// From the capture t2_pfl: the request, the layout of the new file, and the layout after a write
// to the second component.
const REQUEST: &str = concat!(
    "d00bd60bc0000000000000000000020000000000000000000000000000000000",
    "000000000000000000000000000000000000100000000000800000002000000000000000000000000000000000000000",
    "00000000000000000000100000000000ffffffffffffffffa00000002000000000000000000000000000000000000000",
    "d00bd10b0100000051fb0100000000000000000000000000000000000100ffff",
    "d00bd10b0100000031fb0100000000000000000000000000000000000200ffff",
);
const NEW: &str = concat!(
    "d00bd60bf0000000020000000000020000000000000000000000000000000000",
    "010000001000000000000000000000000000100000000000800000003800000000000000000000000000000000000000",
    "02000000000000000000100000000000ffffffffffffffffb80000003800000000000000000000000000000000000000",
    "d00bd10b01000000f0070000000000000204000002000000000010000100000000",
    "04004002000000f2030000000000000000000000000000",
    "d00bd10b01000000f00700000000000002040000020000000000400002",
    "00ffff0000000000000000000000000000000000000000ffffffff",
);
const WRITTEN: &str = concat!(
    "d00bd60b08010000030000000000020000000000000000000000000000000000",
    "010000001000000000000000000000000000100000000000800000003800000000000000000000000000000000000000",
    "02000000100000000000100000000000ffffffffffffffffb80000005000000000000000000000000000000000000000",
    "d00bd10b01000000f0070000000000000204000002000000000010000100000000",
    "04004002000000f2030000000000000000000000000000",
    "d00bd10b01000000f00700000000000002040000020000000000400002000000",
    "010400c002000000ee030000000000000000000001000000",
    "0004004002000000f3030000000000000000000000000000",
);

#[test]
fn layouts_match_a_capture_of_a_lustre_server() {
    let request = parse_request(&hex(REQUEST)).unwrap();
    let defaults = striping(4 << 20, 1);
    let request: Vec<_> = request.into_iter().map(|c| c.with_defaults(&defaults)).collect();
    assert_eq!(request, two());
    let mut layout = new_layout(FILE, &request, 0);
    assert_eq!(missing(&layout, &(0..1)), Ok(vec![0]));
    add_objects(&mut layout, 0, &[object(0, 0x3f2)]);
    assert_eq!(build(&layout), hex(NEW));
    assert_eq!(missing(&layout, &(2 * MIB..2 * MIB + 65536)), Ok(vec![1]));
    let second = StripeObject {
        ost: OstIndex(1),
        fid: Fid::new(0x2_c000_0401, 0x3ee, 0),
    };
    add_objects(&mut layout, 1, &[second, object(0, 0x3f3)]);
    raise_generation(&mut layout);
    assert_eq!(build(&layout), hex(WRITTEN));
    check(&layout).unwrap();
    let place = |component, stripe| StripePlace { component, stripe };
    let expected = [
        (place(0, 0), object(0, 0x3f2)),
        (place(1, 0), second),
        (place(1, 1), object(0, 0x3f3)),
    ];
    assert_eq!(placed_objects(&hex(WRITTEN)).unwrap(), expected);
    assert_eq!(objects(&hex(NEW)).unwrap(), [object(0, 0x3f2)]);
    assert_eq!(missing(&layout, &(0..EOF)), Ok(vec![]));
}

#[test]
fn default_of_a_directory_round_trips() {
    let listed = StripeRequest {
        osts: vec![OstIndex(1), OstIndex(0)],
        ..striping(0, 2)
    };
    let everywhere = StripeRequest {
        first: Some(OstIndex(3)),
        ..striping(0, 0xffff)
    };
    let overstriped = StripeRequest {
        overstriping: true,
        ..striping(1 << 20, 4)
    };
    let request = vec![
        component(0..MIB, StripeRequest::default()),
        component(MIB..8 * MIB, listed),
        component(8 * MIB..16 * MIB, everywhere),
        component(16 * MIB..32 * MIB, overstriped),
    ];
    let ea = to_default_layout(&request);
    assert_eq!(parse_request(&ea).unwrap(), request);
    assert_eq!(
        LayoutRequest::parse(&ea).unwrap(),
        Some(LayoutRequest::Composite(request))
    );
}

#[test]
fn component_without_objects_keeps_what_the_user_requested() {
    let listed = StripeRequest {
        osts: vec![OstIndex(2), OstIndex(2), OstIndex(0)],
        overstriping: true,
        ..striping(1 << 20, 3)
    };
    let first = StripeRequest {
        first: Some(OstIndex(3)),
        pool: wire::Text::truncated("fast"),
        ..striping(1 << 20, 0xffff)
    };
    let requests = [listed, first, striping(64 << 10, 7)];
    let extents = [0..MIB, MIB..2 * MIB, 2 * MIB..EOF];
    let all = extents.into_iter().zip(&requests);
    let all: Vec<_> = all.map(|(e, r)| component(e, r.clone())).collect();
    let ea = build(&new_layout(FILE, &all, 0));
    let layout = components(&ea).unwrap().unwrap();
    for (number, request) in requests.iter().enumerate() {
        assert_eq!(request_of(&layout, number, 4).as_ref(), Some(request));
    }
    assert_eq!(request_of(&layout, 3, 4), None);
    assert_eq!(objects(&ea).unwrap(), []);
    check(&layout).unwrap();
}

#[test]
fn default_stripe_size_divides_the_end_of_a_component() {
    let size_with = |end: u64, given: u32, default: u32| {
        let request = component(0..end, striping(given, 0));
        request.with_defaults(&striping(default, 3)).striping
    };
    assert_eq!(size_with(MIB, 0, 4 << 20), striping(1 << 20, 3));
    assert_eq!(size_with(3 * MIB, 0, 4 << 20).stripe_size, 1 << 20);
    assert_eq!(size_with(8 * MIB, 0, 4 << 20).stripe_size, 4 << 20);
    assert_eq!(size_with(8 * MIB, 1 << 20, 4 << 20).stripe_size, 1 << 20);
    assert_eq!(size_with(EOF, 0, 4 << 20).stripe_size, 4 << 20);
    assert_eq!(size_with(1 << 40, 0, 3 << 20).stripe_size, 1 << 31);
    assert_eq!(size_with(MIB, 0, 0).stripe_size, 1 << 20);
}

#[test]
fn invalid_requests_are_errors() {
    let refused = |extents: &[Range<u64>], size: u32| {
        let all: Vec<_> = extents
            .iter()
            .map(|e| component(e.clone(), striping(size, 1)))
            .collect();
        parse_request(&to_default_layout(&all))
    };
    for extents in [
        &[][..],
        &[MIB..EOF],
        &[0..0],
        &[0..MIB, 2 * MIB..EOF],
        &[0..2 * MIB, MIB..EOF],
        &[0..EOF, 0..EOF],
        &[0..EOF, EOF..EOF],
        &[0..100],
    ] {
        assert_eq!(refused(extents, 0), Err(Errno::EINVAL), "{extents:?}");
    }
    assert_eq!(refused(&[0..3 * MIB], 2 << 20), Err(Errno::EINVAL));
    refused(&[0..3 * MIB, 3 * MIB..EOF], 1 << 20).unwrap();
    let many = |count: u64| {
        let extents: Vec<_> = (0..count).map(|n| n * MIB..(n + 1) * MIB).collect();
        refused(&extents, 0)
    };
    many(500).unwrap();
    assert_eq!(many(600), Err(Errno::EINVAL));
    let ea = to_default_layout(&two());
    assert_eq!(parse_request(&ea[..ea.len() - 1]), Err(Errno::EINVAL));

    let edited = |edit: fn(&mut CompositeLayout)| {
        let mut layout = components(&ea).unwrap().unwrap();
        edit(&mut layout);
        parse_request(&build(&layout))
    };
    assert_eq!(edited(|l| l.head.lcm_mirror_count = 1), Err(Errno::EOPNOTSUPP));
    assert_eq!(
        edited(|l| l.components[1].0.lcme_flags = LCME_FL_EXTENSION),
        Err(Errno::EOPNOTSUPP)
    );
    assert_eq!(
        edited(|l| l.components[0].1.pattern = 0x2),
        Err(Errno::EOPNOTSUPP)
    );
    assert_eq!(edited(|l| l.components[0].1.stripe_size = 1), Err(Errno::EINVAL));
}

#[test]
fn layout_of_a_file_is_no_request_for_its_generations_as_first_osts() {
    let request = parse_request(&build(&new_file())).unwrap();
    assert_eq!(request[0].striping.first, None);
}

#[test]
fn write_needs_the_components_that_it_touches() {
    let bounded = vec![
        component(0..MIB, striping(1 << 20, 1)),
        component(MIB..2 * MIB, striping(1 << 20, 1)),
        component(2 * MIB..4 * MIB, striping(1 << 20, 1)),
    ];
    let layout = new_layout(FILE, &bounded, 0);
    for (range, expected) in [
        (0..1, Ok(vec![0])),
        (0..MIB, Ok(vec![0])),
        (MIB - 1..MIB + 1, Ok(vec![0, 1])),
        (3 * MIB..4 * MIB, Ok(vec![2])),
        (MIB..EOF, Ok(vec![1, 2])),
        (MIB..MIB, Ok(vec![])),
        (3 * MIB..4 * MIB + 1, Err(Errno::EINVAL)),
        (5 * MIB..6 * MIB, Err(Errno::EINVAL)),
        (5 * MIB..EOF, Ok(vec![])),
    ] {
        assert_eq!(missing(&layout, &range), expected, "{range:?}");
    }
}

#[test]
fn number_of_stripes_is_limited_by_the_size_of_a_layout() {
    let wide = |extent| {
        let many = StripeRequest {
            overstriping: true,
            ..striping(1 << 20, 2000)
        };
        component(extent, many)
    };
    let mut layout = new_layout(FILE, &[wide(0..MIB), wide(MIB..EOF)], 0);
    for number in 0..2 {
        let request = request_of(&layout, number, 2).unwrap();
        let count = request.stripe_count_on(2);
        let objects: Vec<_> = (0..count).map(|n| object(n as u32 % 2, n as u32)).collect();
        add_objects(&mut layout, number, &objects);
    }
    assert_eq!(layout.components[0].1.objects.len(), 2000);
    let ea = build(&layout);
    assert!((65000..=65536).contains(&ea.len()), "{}", ea.len());
    check(&layout).unwrap();
    assert!(is_overstriped(&ea));
}

#[test]
fn last_byte_is_in_the_component_that_contains_it() {
    let mut layout = new_file();
    assert_eq!(last_object(&build(&layout), 5), Ok(Some((object(0, 0x3f2), 5))));
    assert_eq!(last_object(&build(&layout), MIB + 1), Err(Errno::EINVAL));
    add_objects(&mut layout, 1, &[object(1, 7), object(0, 8)]);
    // Offsets in objects follow from offsets in the file.
    let last = |size| last_object(&build(&layout), size).unwrap();
    assert_eq!(last(MIB), Some((object(0, 0x3f2), MIB)));
    assert_eq!(last(MIB + 1), Some((object(1, 7), MIB + 1)));
    assert_eq!(last(4 * MIB + 3), Some((object(0, 8), 3)));
}

#[test]
fn swapped_layouts_name_their_files_and_have_new_generations() {
    let other = Fid::new(0x2_0000_0402, 9, 0);
    let composite = build(&new_file());
    let plain = crate::layout::build(other, 1 << 20, wire::Text::default(), &[object(1, 5)]);
    let (new_plain, new_composite) = swap((FILE, &composite), (other, &plain)).unwrap();
    let new_plain = PlainLayout::parse(&new_plain).unwrap();
    let new_composite = components(&new_composite).unwrap().unwrap();
    assert_eq!((new_plain.layout_gen, new_composite.head.lcm_layout_gen), (3, 3));
    assert_eq!(new_plain.oi, super::owner(FILE));
    assert!(
        new_composite
            .components
            .iter()
            .all(|(_, p)| p.oi == super::owner(other))
    );
    assert_eq!(objects(&build(&new_composite)).unwrap(), [object(0, 0x3f2)]);
}

#[test]
fn replayed_layout_has_objects_and_is_valid() {
    let ea = build(&new_file());
    let longer = [&ea[..], b"rest"].concat();
    assert_eq!(replayed(&longer).unwrap(), Some(ea));
    assert_eq!(replayed(&to_default_layout(&two())), Ok(None), "a request");
    let invalid = |edit: fn(&mut CompositeLayout)| {
        let mut layout = new_file();
        edit(&mut layout);
        assert!(check(&layout).is_err());
        assert_eq!(replayed(&build(&layout)), Err(Errno::EINVAL));
    };
    invalid(|l| l.components[0].1.stripe_count = 2);
    invalid(|l| l.components[0].1.stripe_size = 0);
    invalid(|l| l.components[0].1.pattern = 0x100);
    invalid(|l| l.components[1].0.lcme_extent.e_start = 5);
    invalid(|l| l.components[1].1.objects[0].l_ost_oi = Fid::new(5, 5, 0).into());
    invalid(|l| l.components[1].0.lcme_flags = LCME_FL_EXTENSION);
    invalid(|l| l.head.lcm_mirror_count = 1);
    invalid(|l| l.components[1].0.lcme_flags = LCME_FL_INIT);
    assert!(
        check(&CompositeLayout {
            components: vec![],
            ..new_file()
        })
        .is_err()
    );
    assert_eq!(replayed(&LOV_MAGIC_COMP_V1.to_le_bytes()), Err(Errno::EINVAL));
}

#[test]
fn request_without_values_takes_a_default_with_components() {
    let composite = LayoutRequest::Composite(two());
    let plain = LayoutRequest::Striped(striping(0, 2));
    let none = LayoutRequest::default();
    assert_eq!(none.clone().with_defaults(composite.clone()), composite);
    assert_eq!(plain.clone().with_defaults(composite.clone()), plain);
    assert_eq!(none.with_defaults(plain.clone()), plain);
    assert_eq!(composite.clone().with_defaults(plain), composite);
}

#[test]
fn damaged_layouts_never_panic() {
    let with_mdt = [on_mdt(MIB), component(MIB..EOF, striping(1 << 20, 2))];
    let with_mdt = [
        to_default_layout(&with_mdt),
        build(&new_layout(FILE, &with_mdt, 1)),
    ];
    let all = [REQUEST, NEW, WRITTEN].map(hex).into_iter();
    for ea in all.chain(with_mdt.map(Vec::from)) {
        for position in 0..ea.len() {
            for value in [0, 1, 0x10, 0x7f, 0xff] {
                let mut damaged = ea.clone();
                damaged[position] = value;
                if let Ok(Some(LayoutRequest::Composite(all))) = LayoutRequest::parse(&damaged) {
                    let all: Vec<_> = all
                        .into_iter()
                        .map(|c| c.with_defaults(&striping(0, 0)))
                        .collect();
                    let new = new_layout(FILE, &all, 0);
                    assert_eq!(check(&new), Ok(()), "byte {position}: {value}");
                    (0..all.len()).for_each(|number| assert!(request_of(&new, number, 4).is_some()));
                }
                let _ = (
                    replayed(&damaged),
                    last_object(&damaged, 5 * MIB),
                    placed_objects(&damaged),
                    data_max(&damaged),
                );
                let _ = swap((FILE, &damaged), (FILE, &ea));
                if let Ok(Some(layout)) = components(&damaged) {
                    let _ = (check(&layout), missing(&layout, &(0..EOF)));
                }
            }
        }
    }
}

/// A component up to `end` on the MDT.
fn on_mdt(end: u64) -> ComponentRequest {
    ComponentRequest {
        extent: 0..end,
        on_mdt: true,
        striping: StripeRequest::default(),
    }
}

#[test]
fn first_component_may_be_on_the_mdt() {
    let request = vec![on_mdt(MIB), component(MIB..EOF, striping(1 << 20, 2))];
    let ea = to_default_layout(&request);
    assert_eq!(parse_request(&ea).unwrap(), request);
    let layout = new_layout(FILE, &request, 0);
    assert_eq!(check(&layout), Ok(()));
    let stored = build(&layout);
    assert_eq!(data_max(&stored), Some(MIB));
    assert_eq!(objects(&stored), Ok(Vec::new()));
    // The layout of a file is a request, too (`lfs setstripe --copy`, a replayed open).
    assert_eq!(parse_request(&stored).unwrap(), request);
    assert_eq!(replayed(&stored), Ok(Some(stored.clone())));
    assert_eq!(missing(&layout, &(0..MIB)), Ok(Vec::new()));
    assert_eq!(missing(&layout, &(MIB - 1..MIB + 1)), Ok(vec![1]));
    assert_eq!(last_object(&stored, MIB), Ok(None));
    assert_eq!(swap((FILE, &stored), (FILE, &stored)), Err(Errno::EOPNOTSUPP));
}

#[test]
fn component_on_the_mdt_must_be_the_first_with_an_end_and_without_stripes() {
    let parse = |all: &[ComponentRequest], edit: fn(&mut CompositeLayout)| {
        let mut layout = components(&to_default_layout(all)).unwrap().unwrap();
        edit(&mut layout);
        parse_request(&build(&layout))
    };
    let two = [on_mdt(MIB), component(MIB..EOF, striping(1 << 20, 2))];
    parse(&two, |_| {}).unwrap();
    for (all, edit) in [
        (
            &two[..],
            (|l| l.components[0].1.stripe_count = 1) as fn(&mut CompositeLayout),
        ),
        (&two, |l| l.components[0].1.stripe_size = 65536),
        (&two, |l| l.components[1].1.pattern = wire::LOV_PATTERN_MDT),
        (&[on_mdt(EOF)], |_| {}),
        (&[on_mdt(ON_MDT_MAX + MIB)], |_| {}),
    ] {
        assert_eq!(parse(all, edit), Err(Errno::EINVAL), "{all:?}");
    }
}

#[test]
fn component_on_the_mdt_is_limited() {
    let request = || vec![on_mdt(MIB), component(MIB..EOF, striping(1 << 20, 2))];
    assert_eq!(limit_on_mdt(request(), MIB), Ok(request()));
    let limited = limit_on_mdt(request(), 65536).unwrap();
    let extents: Vec<_> = limited.iter().map(|c| c.extent.clone()).collect();
    assert_eq!(extents, [0..65536, 65536..EOF]);
    let none = limit_on_mdt(request(), 0).unwrap();
    assert_eq!(none, [component(0..EOF, striping(1 << 20, 2))]);
    assert_eq!(limit_on_mdt(vec![on_mdt(MIB)], 0), Err(Errno::EINVAL));
}
