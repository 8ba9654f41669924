//! Tests of a node's replies to valid and invalid requests of consoles.
#![allow(clippy::unwrap_used)]

use super::{Framework, NO_SID, Outcome};
use crate::run::Run;
use crate::spec::write_destinations;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use wire::{
    Errno, LstBid, LstSid, Nid, SRPC_BATCH_OPC_QUERY, SRPC_BATCH_OPC_RUN, SRPC_BATCH_OPC_STOP,
    SRPC_SERVICE_PING, Selftest, SrpcBatchReqst, SrpcBody, SrpcDebugReqst, SrpcMksnReqst, SrpcRmsnReqst,
    SrpcStatReqst, SrpcTestReqst, Text,
};

const SID: LstSid = LstSid {
    ses_nid: Nid(0x0002_0000_0a00_0001),
    ses_stamp: 1,
};
/// The time of each event for which a test states no later time.
fn now() -> Instant {
    static NOW: OnceLock<Instant> = OnceLock::new();
    *NOW.get_or_init(Instant::now)
}

const OTHER_SID: LstSid = LstSid { ses_stamp: 2, ..SID };

fn framework() -> Framework {
    Framework::new(Duration::from_secs(100))
}

fn mksn(sid: LstSid, force: bool) -> Selftest {
    let body = SrpcMksnReqst {
        mksn_sid: sid,
        mksn_force: force.into(),
        mksn_name: Text::truncated("name"),
        ..SrpcMksnReqst::default()
    };
    Selftest::new(1, body)
}

fn rmsn(sid: LstSid) -> Selftest {
    Selftest::new(
        1,
        SrpcRmsnReqst {
            rmsn_sid: sid,
            ..SrpcRmsnReqst::default()
        },
    )
}

fn batch(sid: LstSid, opc: u32, testidx: u32) -> Selftest {
    let body = SrpcBatchReqst {
        bar_sid: sid,
        bar_bid: LstBid { bat_id: 9 },
        bar_opc: opc,
        bar_testidx: testidx,
        bar_arg: 1,
        ..SrpcBatchReqst::default()
    };
    Selftest::new(1, body)
}

fn ping_test(client: bool) -> SrpcTestReqst {
    SrpcTestReqst {
        tsr_sid: SID,
        tsr_bid: LstBid { bat_id: 9 },
        tsr_service: SRPC_SERVICE_PING,
        tsr_loop: 5,
        tsr_concur: 3,
        tsr_is_client: client.into(),
        tsr_ndest: client.into(),
        ..SrpcTestReqst::default()
    }
}

fn reply(framework: &mut Framework, request: &Selftest) -> Selftest {
    match framework.handle(now(), request, Default::default) {
        Outcome::Reply(reply) => reply,
        other => panic!("{other:?}"),
    }
}

/// The status and the session of a reply.
fn status_and_sid(framework: &mut Framework, request: &Selftest) -> (Option<Errno>, LstSid) {
    let reply = reply(framework, request);
    let status = reply.body.status().unwrap() as i32;
    (
        (status != 0).then_some(Errno(status)),
        reply.body.reply_sid().unwrap(),
    )
}

fn framework_with_client_test() -> Framework {
    let mut framework = framework();
    assert_eq!(status_and_sid(&mut framework, &mksn(SID, false)), (None, SID));
    let request = ping_test(true);
    let outcome = framework.handle(now(), &Selftest::new(1, request), Default::default);
    assert!(matches!(outcome, Outcome::Fetch(12)));
    let list = write_destinations(&[Nid(0x0002_0000_0a00_0002)]);
    let added = framework.add_client(now(), &request, &list);
    assert_eq!(added.body.status(), Some(0));
    framework
}

fn start(framework: &mut Framework) -> Vec<Arc<Run>> {
    match framework.handle(now(), &batch(SID, SRPC_BATCH_OPC_RUN, 0), Default::default) {
        Outcome::Start(runs, reply) => {
            assert_eq!(reply.body.status(), Some(0));
            runs
        }
        other => panic!("{other:?}"),
    }
}

fn query_active(framework: &mut Framework, testidx: u32) -> u32 {
    match reply(framework, &batch(SID, SRPC_BATCH_OPC_QUERY, testidx)).body {
        SrpcBody::BatchReply(reply) => reply.bar_active,
        _ => panic!(),
    }
}

#[test]
fn session_ends_when_removed_as_often_as_created_or_taken_by_force() {
    let mut framework = framework();
    assert_eq!(
        status_and_sid(&mut framework, &rmsn(SID)),
        (Some(Errno::ESRCH), NO_SID)
    );
    assert_eq!(
        status_and_sid(&mut framework, &mksn(NO_SID, false)),
        (Some(Errno::EINVAL), NO_SID)
    );
    assert_eq!(status_and_sid(&mut framework, &mksn(SID, false)), (None, SID));
    assert_eq!(status_and_sid(&mut framework, &mksn(SID, false)), (None, SID));
    assert_eq!(
        status_and_sid(&mut framework, &mksn(OTHER_SID, false)),
        (Some(Errno::EBUSY), SID)
    );
    assert_eq!(
        status_and_sid(&mut framework, &rmsn(OTHER_SID)),
        (Some(Errno::EBUSY), SID)
    );
    assert_eq!(status_and_sid(&mut framework, &rmsn(SID)), (None, SID));
    assert_eq!(status_and_sid(&mut framework, &rmsn(SID)), (None, NO_SID));
    assert_eq!(status_and_sid(&mut framework, &mksn(SID, false)), (None, SID));
    assert_eq!(
        status_and_sid(&mut framework, &mksn(OTHER_SID, true)),
        (None, OTHER_SID)
    );
    let busy = reply(&mut framework, &mksn(SID, false)).body;
    let SrpcBody::MksnReply(busy) = busy else { panic!() };
    assert_eq!((busy.mksn_timeout, busy.mksn_name.as_str()), (100, "name"));
}

#[test]
fn requests_of_another_session_fail() {
    let mut framework = framework_with_client_test();
    let stat = Selftest::new(
        1,
        SrpcStatReqst {
            str_sid: OTHER_SID,
            ..SrpcStatReqst::default()
        },
    );
    assert_eq!(status_and_sid(&mut framework, &stat), (Some(Errno::ESRCH), SID));
    assert_eq!(
        status_and_sid(&mut framework, &batch(OTHER_SID, SRPC_BATCH_OPC_RUN, 0)),
        (Some(Errno::ESRCH), SID)
    );
    let test = SrpcTestReqst {
        tsr_sid: OTHER_SID,
        ..ping_test(false)
    };
    assert_eq!(
        status_and_sid(&mut framework, &Selftest::new(1, test)),
        (Some(Errno::ENOENT), SID)
    );
    let unknown = SrpcBatchReqst {
        bar_sid: SID,
        bar_opc: SRPC_BATCH_OPC_RUN,
        ..SrpcBatchReqst::default()
    };
    assert_eq!(
        status_and_sid(&mut framework, &Selftest::new(1, unknown)),
        (Some(Errno::ENOENT), SID)
    );
}

#[test]
fn requests_with_wrong_features_or_version_fail() {
    let mut framework = framework();
    let unknown_feats = Selftest {
        feats: 2,
        ..mksn(SID, false)
    };
    assert_eq!(
        status_and_sid(&mut framework, &unknown_feats).0,
        Some(Errno::EPROTO)
    );
    let no_feats = Selftest {
        feats: 0,
        ..mksn(SID, false)
    };
    assert_eq!(status_and_sid(&mut framework, &no_feats), (None, SID));
    assert_eq!(
        status_and_sid(&mut framework, &batch(SID, SRPC_BATCH_OPC_RUN, 0)),
        (Some(Errno::EPROTO), SID)
    );
    let debug = Selftest::new(1, SrpcDebugReqst::default());
    assert_eq!(reply(&mut framework, &debug).feats, 0);
    let version = Selftest { version: 2, ..debug };
    assert_eq!(status_and_sid(&mut framework, &version).0, Some(Errno::EPROTO));
}

#[test]
fn batch_runs_its_clients_and_reports_active_units() {
    let mut framework = framework_with_client_test();
    assert_eq!(
        status_and_sid(&mut framework, &Selftest::new(1, ping_test(false))),
        (None, SID)
    );
    let runs = start(&mut framework);
    assert_eq!((runs.len(), runs[0].active_units()), (1, 3));
    assert_eq!(
        (
            query_active(&mut framework, 0),
            query_active(&mut framework, 1),
            query_active(&mut framework, 2)
        ),
        (1, 3, 0)
    );
    assert_eq!(
        status_and_sid(&mut framework, &batch(SID, SRPC_BATCH_OPC_QUERY, 3)),
        (Some(Errno::ENOENT), SID)
    );
    assert_eq!(
        status_and_sid(&mut framework, &batch(SID, SRPC_BATCH_OPC_RUN, 0)),
        (None, SID),
        "already running"
    );
    let more = framework.handle(now(), &Selftest::new(1, ping_test(true)), Default::default);
    assert!(matches!(more, Outcome::Reply(busy) if busy.body.status() == Some(Errno::EBUSY.0 as u32)));
    assert_eq!(
        status_and_sid(&mut framework, &batch(SID, SRPC_BATCH_OPC_STOP, 0)),
        (None, SID)
    );
    assert!(runs[0].is_stopping());
    for _ in 0..3 {
        drop(runs[0].create_unit());
    }
    assert_eq!(query_active(&mut framework, 0), 0);
    assert_eq!(start(&mut framework)[0].active_units(), 3, "restarted");
    let unknown_opc = framework.handle(now(), &batch(SID, 4, 0), Default::default);
    assert!(matches!(unknown_opc, Outcome::Drop(_)));
}

#[test]
fn test_with_too_many_units_fails() {
    let mut framework = framework_with_client_test();
    let nids: Vec<Nid> = (0..64).map(|i| Nid(0x0002_0000_0a00_0000 + i)).collect();
    let request = SrpcTestReqst {
        tsr_concur: 1024,
        tsr_ndest: 64,
        ..ping_test(true)
    };
    let list = write_destinations(&nids);
    let added = framework.add_client(now(), &request, &list);
    assert_eq!(added.body.status(), Some(Errno::ENOMEM.0 as u32));
}

#[test]
fn session_without_requests_times_out_and_stops_its_tests() {
    let mut framework = framework_with_client_test();
    let runs = start(&mut framework);
    let start_time = now();
    assert_eq!(
        framework.expire_session(start_time + Duration::from_secs(99)),
        None
    );
    assert_eq!(
        framework
            .expire_session(start_time + Duration::from_secs(101))
            .as_deref(),
        Some("name")
    );
    assert!(runs[0].is_stopping());
    assert_eq!(
        status_and_sid(&mut framework, &mksn(OTHER_SID, false)),
        (None, OTHER_SID)
    );
    let stat = Selftest::new(
        1,
        SrpcStatReqst {
            str_sid: OTHER_SID,
            ..SrpcStatReqst::default()
        },
    );
    let zombies = |framework: &mut Framework| match reply(framework, &stat).body {
        SrpcBody::StatReply(stat) => stat.str_fw.zombie_sessions,
        _ => panic!(),
    };
    assert_eq!(zombies(&mut framework), 1);
    for _ in 0..3 {
        drop(runs[0].create_unit());
    }
    framework.expire_session(now());
    assert_eq!(zombies(&mut framework), 0);
}
