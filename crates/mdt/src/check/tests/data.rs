//! Data on the MDT: of files without a part there, and with attributes that do not match it.

use osd::{ExtentData, SetAttr};

use super::*;
use crate::{
    namespace::{DataChange, change_data},
    store::data::decode_attr,
};

const MIB: u64 = 1 << 20;

/// The tree with a file that has its first MiB on the MDT, and 40,000 bytes of data.
async fn tree() -> Tree {
    let t = Tree::new();
    let on_mdt = ComponentRequest {
        extent: 0..MIB,
        on_mdt: true,
        striping: StripeRequest::default(),
    };
    let layout = composite::new_layout(t.file, &[on_mdt], 0);
    t.change(t.file, |i| i.lov = LovLayout::Composite(layout).build());
    let extent = ExtentData {
        offset: 0,
        data: vec![Bytes::from(vec![1; 40_000])],
    };
    let write = DataChange::Write(vec![extent]);
    change_data(&t.f.store, t.file, &write, SetAttr::default())
        .await
        .unwrap();
    t
}

#[tokio::test]
async fn data_of_a_file_is_no_problem_and_leaves_with_it() {
    let mut t = tree().await;
    assert_eq!(t.findings().await, []);
    assert_eq!(t.f.store.data_keys(t.file).await.unwrap().len(), 1 + 3);
    t.f.unlink(t.b, "f").unwrap();
    t.f.unlink(ROOT, "link").unwrap();
    assert_eq!(t.f.store.data_keys(t.file).await.unwrap(), Vec::<Bytes>::new());
    assert_eq!(t.findings().await, []);
}

#[tokio::test]
async fn data_without_a_file_is_removed() {
    let t = tree().await;
    // Without the layout, the data belongs to nothing.
    t.change(t.file, |i| i.lov = Bytes::new());
    let unknown = Fid::new(t.file.f_seq, 0xffff, 0);
    t.damage(|batch| {
        batch.put(keys::data_block(unknown, 3), "data");
    });
    assert_eq!(t.kinds().await, ["data without a file"; 2]);
    t.repair_all().await;
    for file in [t.file, unknown] {
        assert_eq!(t.f.store.data_keys(file).await.unwrap(), Vec::<Bytes>::new());
    }
}

#[tokio::test]
async fn attributes_that_do_not_match_the_data_are_repaired() {
    let attr = async |t: &Tree| {
        let value = t.f.store.index().get(&keys::data(t.file)).await.unwrap();
        decode_attr(&value.unwrap()).unwrap()
    };
    type Damage = fn(&mut Batch, Fid);
    let damages: [(Damage, (u64, u64)); 3] = [
        (
            |batch, fid| {
                batch.delete(keys::data(fid));
            },
            (40_000, 80),
        ),
        (
            |batch, fid| {
                batch.put(keys::data(fid), "x");
            },
            (40_000, 80),
        ),
        // The size stays: the lost block is a hole.
        (
            |batch, fid| {
                batch.delete(keys::data_block(fid, 2));
            },
            (40_000, 64),
        ),
    ];
    for (damage, expected) in damages {
        let t = tree().await;
        t.damage(|batch| damage(batch, t.file));
        assert_eq!(t.findings().await, [("wrong size of data", "/a/b/f".into())]);
        t.repair_all().await;
        let attr = attr(&t).await;
        assert_eq!((attr.size, attr.blocks), expected);
    }
}
