//! The table of connect flags in docs/interoperability.md states for each flag of Lustre's servers
//! whether Nacre's targets grant it.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use rpc::{ConnectRequest, Target};
use wire::{
    MDT_CONNECT_SUPPORTED, MDT_CONNECT_SUPPORTED2, MGS_CONNECT_SUPPORTED, MGS_CONNECT_SUPPORTED2, Nid,
    OST_CONNECT_SUPPORTED, OST_CONNECT_SUPPORTED2, ObdConnectData,
};

use testkit::Cluster;

const PAGE: &str = include_str!("../../../../docs/interoperability.md");

/// Both flag words that a target grants to a client that requests all flags.
fn granted(target: &dyn Target) -> [u64; 2] {
    let data = ObdConnectData {
        ocd_connect_flags: u64::MAX,
        ocd_connect_flags2: u64::MAX,
        ocd_brw_size: 1 << 20,
        ocd_cksum_types: u32::MAX,
        ..ObdConnectData::default()
    };
    let request = ConnectRequest {
        client_uuid: "client".into(),
        peer: Nid::LO,
        reconnects: false,
        recovers: false,
        data,
    };
    let data = target.negotiate(&request).unwrap();
    [data.ocd_connect_flags, data.ocd_connect_flags2]
}

/// The rows of the table by flag: the cells of MDT, OST and MGS, and the reason.
fn rows() -> BTreeMap<&'static str, Vec<&'static str>> {
    let (_, table) = PAGE.split_once("| connect flag |").expect("the table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|line| {
        line.trim_matches('|')
            .split('|')
            .map(str::trim)
            .collect::<Vec<_>>()
    });
    cells
        .map(|cells| (cells[0].trim_matches('`'), cells[1..].to_vec()))
        .collect()
}

#[tokio::test]
async fn the_table_of_connect_flags_matches_the_granted_flags() {
    let cluster = Cluster::start(1).await;
    let lustre_grants = [
        [MDT_CONNECT_SUPPORTED, MDT_CONNECT_SUPPORTED2],
        [OST_CONNECT_SUPPORTED, OST_CONNECT_SUPPORTED2],
        [MGS_CONNECT_SUPPORTED, MGS_CONNECT_SUPPORTED2],
    ];
    let nacre_grants = [
        granted(&*cluster.mdt),
        granted(&*cluster.osts[0]),
        granted(&*cluster.mgs),
    ];
    let mut rows = rows();
    for (constant, flag) in wire::consts::all() {
        let (name, word) = match constant.split_once('_') {
            Some(("OBD", rest)) if rest.starts_with("CONNECT_") => (&rest[8..], 0),
            Some(("OBD", rest)) if rest.starts_with("CONNECT2_") => (&rest[9..], 1),
            _ => continue,
        };
        let cells = [0, 1, 2].map(|target| match lustre_grants[target][word] & flag {
            0 => "",
            _ if nacre_grants[target][word] & flag != 0 => "yes",
            _ => "no",
        });
        if cells == [""; 3] {
            continue;
        }
        let row = rows
            .remove(name)
            .unwrap_or_else(|| panic!("no row of {name}: {cells:?}"));
        assert_eq!(row[..3], cells, "{name}");
        assert!(!cells.contains(&"no") || !row[3].is_empty(), "{name}: no reason");
    }
    assert!(rows.is_empty(), "Lustre's servers do not grant {rows:?}");
}
