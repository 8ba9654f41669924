//! Tests of layouts.

#![allow(clippy::unwrap_used)]
use super::{Elsewhere, FileLayout, ObjectExtent, ObjectIndex, Stripe, StripeTarget};
use bytes::Bytes;
use wire::striping::{CompositeLayout, LovLayout, PlainLayout};
use wire::{
    Errno, Fid, LCME_FL_INIT, LOV_MAGIC_COMP_V1, LOV_MAGIC_FOREIGN, LOV_PATTERN_F_RELEASED, LOV_PATTERN_MDT,
    LOV_PATTERN_OVERSTRIPING, LovCompMdEntryV1, LovCompMdV1, LovForeignMd, LovOstDataV1, LuExtent, OstId,
    OstIndex, StripeIndex,
};

const KIB64: u64 = 65536;
const MIB: u64 = 1 << 20;

fn plain(count: u32, stripe_size: u32) -> PlainLayout {
    let object = |i: u32| LovOstDataV1 {
        l_ost_oi: OstId {
            oi_id: 0x1000,
            oi_seq: i.into(),
        },
        l_ost_gen: 0,
        l_ost_idx: i,
    };
    PlainLayout::raid0(Fid::ZERO, stripe_size, (0..count).map(object).collect())
}

fn ea(count: u32, stripe_size: u32) -> Bytes {
    plain(count, stripe_size).build()
}

/// A composite layout: the end of each component, whether it has its objects, and its stripes.
fn composite(mirrors: u16, components: &[(u64, bool, PlainLayout)]) -> Result<FileLayout, Errno> {
    let mut start = 0;
    let component = |(end, is_init, plain): &(u64, bool, PlainLayout)| {
        let lcme_extent = LuExtent {
            e_start: std::mem::replace(&mut start, *end),
            e_end: *end,
        };
        let entry = LovCompMdEntryV1 {
            lcme_flags: if *is_init { LCME_FL_INIT } else { 0 },
            lcme_extent,
            ..Default::default()
        };
        (entry, plain.clone())
    };
    let layout = CompositeLayout {
        head: LovCompMdV1 {
            lcm_magic: LOV_MAGIC_COMP_V1,
            lcm_mirror_count: mirrors - 1,
            ..Default::default()
        },
        components: components.iter().map(component).collect(),
    };
    FileLayout::parse(LovLayout::Composite(layout).build())
}

/// One object up to 1 MiB, two up to 4 MiB, and a component without objects.
fn progressive() -> FileLayout {
    composite(
        1,
        &[
            (MIB, true, plain(1, 65536)),
            (4 * MIB, true, plain(2, 1 << 20)),
            (u64::MAX, false, PlainLayout::request(1 << 20, 4, None)),
        ],
    )
    .unwrap()
}

fn indices(layout: &FileLayout) -> impl Iterator<Item = ObjectIndex> + use<> {
    (0..layout.count() as u32).map(ObjectIndex)
}

#[test]
fn a_released_file_has_no_objects() {
    let mut layout = plain(2, 1 << 20);
    assert_eq!(FileLayout::parse(layout.build()).unwrap().elsewhere(), None);
    layout.pattern |= LOV_PATTERN_F_RELEASED;
    let layout = FileLayout::parse(layout.build()).unwrap();
    assert!(layout.elsewhere() == Some(Elsewhere::Archive) && layout.is_empty());
}

#[test]
fn a_foreign_layout_is_kept_and_has_no_objects() {
    let head = LovForeignMd {
        lfm_magic: LOV_MAGIC_FOREIGN,
        ..Default::default()
    };
    let ea = LovLayout::Foreign(head, Bytes::from_static(b"s3://bucket")).build();
    let layout = FileLayout::parse(ea.clone()).unwrap();
    assert_eq!(
        (layout.elsewhere(), layout.count()),
        (Some(Elsewhere::Foreign), 0)
    );
    assert_eq!(layout.raw, ea);
}

#[test]
fn a_parsed_layout_has_its_objects() {
    for pattern in [0, LOV_PATTERN_OVERSTRIPING] {
        let mut layout = plain(2, 1 << 20);
        layout.pattern |= pattern;
        let layout = FileLayout::parse(layout.build()).unwrap();
        let oi = OstId {
            oi_id: 0x1000,
            oi_seq: 1,
        };
        let second = Stripe {
            oi,
            target: StripeTarget::Ost(OstIndex(1)),
        };
        assert_eq!(layout.objects().nth(1), Some((StripeIndex(1), &second)));
        assert_eq!(layout.components()[0].extent, 0..u64::MAX);
    }
}

#[test]
fn a_short_or_invalid_layout_is_an_error() {
    let whole = ea(2, 1 << 20);
    // The header alone is valid: the MDT allocates the objects later.
    for cut in (1..32).chain(56..whole.len()) {
        assert!(FileLayout::parse(whole.slice(..cut)).is_err(), "cut at {cut}");
    }
    assert_eq!(FileLayout::parse(ea(2, 0)), Err(Errno::EPROTO));
    let garbage = Bytes::from_static(&[1; 64]);
    assert_eq!(FileLayout::parse(garbage), Err(Errno::EPROTO));
    assert!(FileLayout::parse(Bytes::new()).unwrap().is_empty());
}

#[test]
fn unsupported_and_invalid_components_are_errors() {
    let whole = |layout| (u64::MAX, true, layout);
    assert!(composite(1, &[whole(plain(1, 65536))]).is_ok());
    assert_eq!(composite(2, &[whole(plain(1, 65536))]), Err(Errno::EOPNOTSUPP));
    let on_mdt = PlainLayout {
        pattern: LOV_PATTERN_MDT,
        ..plain(0, 65536)
    };
    assert_eq!(
        composite(1, &[whole(on_mdt.clone())]),
        Err(Errno::EPROTO),
        "no end"
    );
    let first = (MIB, true, plain(1, 65536));
    let second = (2 * MIB, true, on_mdt);
    assert_eq!(
        composite(1, &[first, second]),
        Err(Errno::EPROTO),
        "not the first"
    );
    let first = (MIB, true, plain(1, 65536));
    for second in [first.clone(), (MIB / 2, true, plain(1, 65536))] {
        assert_eq!(composite(1, &[first.clone(), second]), Err(Errno::EPROTO));
    }
    let short = PlainLayout {
        stripe_count: 2,
        ..plain(1, 65536)
    };
    assert_eq!(composite(1, &[whole(short)]), Err(Errno::EPROTO));
}

#[test]
fn a_range_is_split_at_stripe_boundaries() {
    let layout = FileLayout::parse(ea(2, 65536)).unwrap();
    let pieces: Vec<_> = layout.extents(65530, 65546).collect();
    let extent = |object, object_offset, file_offset, len| ObjectExtent {
        object: ObjectIndex(object),
        object_offset,
        file_offset,
        len,
    };
    assert_eq!(
        pieces,
        [
            extent(0, 65530, 65530, 6),
            extent(1, 0, 65536, 65536),
            extent(0, 65536, 131_072, 4),
        ]
    );
    // Offsets in the objects of a component depend on offsets in the file.
    let pieces: Vec<_> = progressive().extents(MIB - 4, 2 * MIB).collect();
    assert_eq!(
        pieces,
        [
            extent(0, MIB - 4, MIB - 4, 4),
            extent(2, 0, MIB, MIB),
            extent(1, MIB, 2 * MIB, MIB - 4),
        ]
    );
}

#[test]
fn a_range_touches_only_objects_with_bytes_of_it() {
    let layout = FileLayout::parse(ea(4, 65536)).unwrap();
    let touched = |start, end| -> Vec<_> {
        let objects = layout.objects_in(start..end);
        objects.map(|(o, range)| (o.0, range)).collect()
    };
    assert_eq!(touched(KIB64, KIB64 + 1), [(1, 0..1)]);
    // Across the end of a full stripe; in ascending order.
    assert_eq!(
        touched(4 * KIB64 - 1, 4 * KIB64 + 2),
        [(0, KIB64..KIB64 + 2), (3, KIB64 - 1..KIB64)]
    );
    assert_eq!(touched(KIB64, 3 * KIB64), [(1, 0..KIB64), (2, 0..KIB64)]);
    assert_eq!(touched(0, 0), []);
    let to_end = touched(KIB64 + 5, u64::MAX);
    let from: Vec<_> = to_end.iter().map(|(_, range)| range.start).collect();
    assert_eq!(from, [KIB64, 5, 0, 0]);
    assert!(to_end.iter().all(|(_, range)| range.end == u64::MAX));
    // The extents of a range lie in the ranges of its objects and fill them.
    for (start, len) in [(0, 1), (12345, 3 * KIB64), (5 * KIB64 - 1, 2), (7, 100 * KIB64)] {
        let bytes: u64 = layout
            .objects_in(start..start + len)
            .map(|(_, r)| r.end - r.start)
            .sum();
        assert_eq!(bytes, len);
    }
    let progressive = progressive();
    let touched: Vec<_> = progressive.objects_in(MIB / 2..2 * MIB).collect();
    assert_eq!(
        touched,
        [(ObjectIndex(0), MIB / 2..MIB), (ObjectIndex(2), 0..MIB)]
    );
}

#[test]
fn parts_without_objects_are_known() {
    let layout = progressive();
    assert!(layout.has_objects(0..4 * MIB) && layout.has_objects(9 * MIB..9 * MIB));
    assert!(!layout.has_objects(4 * MIB - 1..4 * MIB + 1));
    assert_eq!(layout.extents(4 * MIB, MIB).count(), 0);
    assert_eq!(layout.first_without_object(0), Some(4 * MIB));
    assert_eq!(layout.first_without_object(5 * MIB), Some(5 * MIB));
    assert_eq!(layout.size_max(MIB), u64::MAX);
    let whole = FileLayout::parse(ea(3, 65536)).unwrap();
    assert!(whole.has_objects(0..u64::MAX) && whole.first_without_object(0).is_none());
    assert_eq!(whole.size_max(2 * KIB64), 4 * KIB64);
    let bounded = composite(1, &[(MIB, true, plain(1, 65536))]).unwrap();
    assert_eq!(bounded.size_max(u64::MAX / 2), MIB);
}

#[test]
fn sizes_of_objects_and_file_agree() {
    let layout = FileLayout::parse(ea(3, 65536)).unwrap();
    for size in [0, 1, 65536, 65537, 200_000, 10_000_000] {
        let sizes: Vec<_> = layout.truncated(size).collect();
        assert_eq!(sizes.len(), 3);
        let file_size = sizes
            .iter()
            .map(|(object, size)| layout.file_size(*object, *size));
        assert_eq!(file_size.max(), Some(size));
        assert_eq!(sizes.iter().map(|(_, size)| size).sum::<u64>(), size);
    }
}

#[test]
fn a_truncate_changes_the_component_with_the_last_byte_and_later_ones() {
    let layout = progressive();
    let sizes = |size| {
        layout
            .truncated(size)
            .map(|(o, size)| (o.0, size))
            .collect::<Vec<_>>()
    };
    assert_eq!(sizes(5), [(0, 5), (1, 0), (2, 0)]);
    assert_eq!(sizes(MIB), [(0, MIB), (1, 0), (2, 0)]);
    // 2 MiB + 3 bytes: the second object of the component has [1 MiB, 2 MiB) of the file.
    assert_eq!(sizes(2 * MIB + 3), [(1, MIB + 3), (2, MIB)]);
    assert_eq!(sizes(4 * MIB), [(1, 2 * MIB), (2, 2 * MIB)]);
    for size in [5, MIB, 2 * MIB + 3, 4 * MIB] {
        let implied = layout
            .truncated(size)
            .map(|(o, bytes)| layout.file_size(o, bytes));
        assert_eq!(implied.max(), Some(size));
    }
    assert_eq!(FileLayout::range_of_size(MIB), MIB - 1..MIB);
    assert_eq!(FileLayout::range_of_size(0), 0..0);
}

#[test]
fn offsets_in_objects_map_back_to_the_file() {
    for layout in [FileLayout::parse(ea(3, 65536)).unwrap(), progressive()] {
        for offset in [0, 1, 65535, 65536, 3 * 65536 + 7, MIB, 3 * MIB + 5] {
            let extent = layout.extents(offset, 1).next().unwrap();
            assert_eq!(
                layout.file_offset(extent.object, extent.object_offset),
                Some(offset)
            );
        }
        assert!(indices(&layout).all(|o| layout.file_size(o, 0) == 0));
    }
    // Beyond the end of the component.
    assert_eq!(progressive().file_offset(ObjectIndex(0), MIB), None);
}

#[test]
fn component_on_the_mdt_is_one_object_with_the_offsets_of_the_file() {
    let on_mdt = PlainLayout::request_on_mdt(MIB as u32);
    let layout = composite(1, &[(MIB, true, on_mdt), (u64::MAX, true, plain(2, 65536))]).unwrap();
    let targets: Vec<_> = layout.objects().map(|(_, stripe)| stripe.target).collect();
    assert_eq!(targets[0], StripeTarget::Mdt);
    assert_eq!(targets[1..], [0, 1].map(|n| StripeTarget::Ost(OstIndex(n))));
    let first = layout.extents(MIB - 10, 20).next().unwrap();
    assert_eq!((first.object_offset, first.len), (MIB - 10, 10));
    assert_eq!(layout.file_size(ObjectIndex(0), MIB - 3), MIB - 3);
    let truncated: Vec<_> = layout.truncated(1000).collect();
    assert_eq!(
        truncated,
        [(0, 1000), (1, 0), (2, 0)].map(|(o, size)| (ObjectIndex(o), size))
    );
    assert!(layout.has_objects(0..MIB));
}
