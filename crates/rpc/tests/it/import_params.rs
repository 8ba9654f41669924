//! The parameters of an import.
#![allow(clippy::unwrap_used)]

use params::Registry;
use rpc::{ImportKind, Request};
use testbase::by_hand::MDT;
use testbase::rpc_node::{EchoTarget, client, node};

#[tokio::test(start_paused = true)]
async fn import_shows_its_state_and_requests() {
    let (rpc, params) = (node(1), Registry::default());
    rpc.add_target(EchoTarget::new(MDT));
    let (import, _) = client(&rpc, MDT, ImportKind::Mdc).await;
    let mut group = params.group("mdc.fs-MDT0000-mdc");
    import.add_params(&mut group);
    import
        .call(Request::new(wire::MDS_GETATTR, Vec::new()))
        .await
        .unwrap();
    let get = |leaf: &str| params.get(&format!("mdc.*.{leaf}")).pop().unwrap().1;
    let stats = get("stats");
    assert!(
        stats.contains("\nmds_getattr                         1 samples [usecs] "),
        "{stats}"
    );
    assert!(
        stats.contains("\nreq_waittime                        1 samples [usecs] "),
        "{stats}"
    );
    let shown = get("import");
    for line in [
        "import:\n",
        "    target: testfs-MDT0000_UUID\n",
        "    state: FULL\n",
        ", bulk_mbits, second_flags, reply_mbits ]\n",
        "    import_flags: [ IMPF_PINGABLE, IMPF_CONNECT_TRIED ]\n",
        "       failover_nids: [ \"0@lo\" ]\n",
        "          \"0@lo\": { connects: 1, replied: 1, sec_ago: 0 }\n",
        "       current_connection: \"0@lo\"\n",
        "       connection_attempts: 1\n       generation: 1\n       in-progress_invalidations: 0\n",
        "       idle: 0 sec\n",
        "       inflight: 0\n       timeouts: 0\n",
        "       network: 1 sec\n",
        "       peer_committed: 0\n       last_checked: 0\n",
    ] {
        assert!(shown.contains(line), "{line}{shown}");
    }
    assert!(!shown.contains("data_averages"), "{shown}");
    import.note_write(4096);
    import
        .call(Request::new(wire::OST_WRITE, Vec::new()))
        .await
        .unwrap();
    let shown = get("import");
    assert!(
        shown.contains("    write_data_averages:\n       bytes_per_rpc: 4096\n       usecs_per_rpc: "),
        "{shown}"
    );
    import.disconnect().await;
    let state = get("state");
    assert!(
        state.starts_with("current_state: CLOSED\nstate_history:\n - [ "),
        "{state}"
    );
    let states: Vec<&str> = state
        .lines()
        .skip(2)
        .filter_map(|l| l.split(' ').nth(4))
        .collect();
    assert_eq!(states, ["CONNECTING", "FULL", "CLOSED"]);
    params.set("mdc.*.stats", "clear").unwrap();
    assert_eq!(get("stats").lines().count(), 3);
}
