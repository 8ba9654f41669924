//! LNet and its TCP driver: headers, hellos, ping replies, counters.

use crate::layout::wire_structs;
use crate::nid::Nid;

wire_structs! {
    #[derive(Copy, Hash)]
    pub struct LnetNid("lnet_nid", 20) {
        nid_size: u8, nid_type: u8, nid_num: [u8; 2], nid_addr: [u8; 16],
    }
    #[derive(Copy, Hash)]
    pub struct LnetProcessIdPacked("lnet_process_id_packed", 12) {
        nid: Nid, pid: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LnetHandleWire("lnet_handle_wire", 16) {
        wh_interface_cookie: u64, wh_object_cookie: u64,
    }
    #[derive(Copy, Hash)]
    pub struct LnetMagicversion("lnet_magicversion", 8) {
        magic: u32, version_major: u16, version_minor: u16,
    }
    #[derive(Copy, Hash)]
    pub struct LnetHdrNid4("_lnet_hdr_nid4", 72) {
        dest_nid: Nid, src_nid: Nid, dest_pid: u32, src_pid: u32, r#type: u32, payload_length: u32,
        msg: [u8; 40],
    }
    #[derive(Copy, Hash)]
    pub struct LnetHdr("lnet_hdr", 96) {
        dest_nid: LnetNid, src_nid: LnetNid, dest_pid: u32, src_pid: u32, r#type: u32, payload_length: u32,
        msg: [u8; 40],
    }
    #[derive(Copy, Hash)]
    pub struct LnetAck("lnet_ack", 28) {
        dst_wmd: LnetHandleWire, match_bits: u64, mlength: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LnetPut("lnet_put", 40) {
        ack_wmd: LnetHandleWire, match_bits: u64, hdr_data: u64, ptl_index: u32, offset: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LnetGet("lnet_get", 36) {
        return_wmd: LnetHandleWire, match_bits: u64, ptl_index: u32, src_offset: u32, sink_length: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LnetReply("lnet_reply", 16) {
        dst_wmd: LnetHandleWire,
    }
    #[derive(Copy, Hash)]
    pub struct LnetHello("lnet_hello", 12) {
        incarnation: u64, r#type: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LnetNiStatus("lnet_ni_status", 16) {
        ns_nid: Nid, ns_status: u32, ns_msg_size: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LnetNiLargeStatus("lnet_ni_large_status", 24) {
        ns_status: u32, ns_nid: LnetNid,
    }
    #[derive(Copy, Hash)]
    pub struct LnetPingInfo("lnet_ping_info", 16) {
        pi_magic: u32, pi_features: u32, pi_pid: u32, pi_nnis: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LnetNidMdEntry("lnet_nid_md_entry", 40) {
        nid: Nid, buffer: [u8; 32],
    }
    #[derive(Copy, Hash)]
    pub struct LnetNidMetadata("lnet_nid_metadata", 4) {
        num_nid_mappings: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LnetAcceptorConnreq("lnet_acceptor_connreq", 16) {
        acr_magic: u32, acr_version: u32, acr_nid: Nid,
    }
    #[derive(Copy, Hash)]
    pub struct LnetAcceptorConnreqV2("lnet_acceptor_connreq_v2", 28) {
        acr_magic: u32, acr_version: u32, acr_nid: LnetNid,
    }
    #[derive(Copy, Hash)]
    pub struct KsockHelloMsgNid4("ksock_hello_msg_nid4", 56) {
        kshm_magic: u32, kshm_version: u32, kshm_src_nid: Nid, kshm_dst_nid: Nid, kshm_src_pid: u32,
        kshm_dst_pid: u32, kshm_src_incarnation: u64, kshm_dst_incarnation: u64, kshm_ctype: i32,
        kshm_nips: u32,
    }
    #[derive(Copy, Hash)]
    pub struct KsockHelloMsg("ksock_hello_msg", 80) {
        kshm_magic: u32, kshm_version: u32, kshm_src_nid: LnetNid, kshm_dst_nid: LnetNid, kshm_src_pid: u32,
        kshm_dst_pid: u32, kshm_src_incarnation: u64, kshm_dst_incarnation: u64, kshm_ctype: i32,
        kshm_nips: u32,
    }
    #[derive(Copy, Hash)]
    pub struct KsockMsgHdr("ksock_msg_hdr", 24) {
        ksh_type: u32, ksh_csum: u32, ksh_zc_cookies: [u64; 2],
    }
    #[derive(Copy, Hash)]
    pub struct LnetCountersCommon("lnet_counters_common", 60) {
        lcc_msgs_alloc: u32, lcc_msgs_max: u32, lcc_errors: u32, lcc_send_count: u32, lcc_recv_count: u32,
        lcc_route_count: u32, lcc_drop_count: u32, lcc_send_length: u64, lcc_recv_length: u64,
        lcc_route_length: u64, lcc_drop_length: u64,
    }
    #[derive(Copy, Hash)]
    pub struct LnetCountersHealth("lnet_counters_health", 60) {
        lch_rst_alloc: u32, lch_resend_count: u32, lch_response_timeout_count: u32,
        lch_local_interrupt_count: u32, lch_local_dropped_count: u32, lch_local_aborted_count: u32,
        lch_local_no_route_count: u32, lch_local_timeout_count: u32, lch_local_error_count: u32,
        lch_remote_dropped_count: u32, lch_remote_error_count: u32, lch_remote_timeout_count: u32,
        lch_network_timeout_count: u32, lch_failed_resends: u32, lch_successful_resends: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LnetCounters("lnet_counters", 120) {
        lct_common: LnetCountersCommon, lct_health: LnetCountersHealth,
    }
}
