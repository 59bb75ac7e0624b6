//! A daemon that is well, under load, failed, and short of space: what a person reads of it.

use super::*;

/// A daemon a minute after its start, at rest.
pub(crate) fn at_rest() -> v1::StatusResponse {
    v1::StatusResponse {
        version: "0.0.1".into(),
        log_id: vec![0xAB; 16].into(),
        epoch: 3,
        epoch_first_offset: 1200,
        policy: v1::DurabilityPolicy::GroupCommit.into(),
        io_engine: "blocking".into(),
        highest_ack: v1::AckLevel::Durable.into(),
        offsets: Some(v1::Offsets { received: 1234, written: 1234, durable: 1234 }),
        segments: 2,
        bytes: 134_217_728,
        segment_bytes: 64 << 20,
        reserve_free_bytes: 64 << 20,
        inflight_limit_bytes: 16 << 20,
        prepared: true,
        ready: true,
        disk_free_bytes: 1 << 30,
        disk_total_bytes: 4 << 30,
        substrate: Some(v1::Substrate {
            filesystem: "ext4".into(),
            mount_point: "/".into(),
            mount_options: "rw".into(),
            devices: vec![v1::Device { name: "vda".into(), cache: "write back".into(), ..v1::Device::default() }],
            notes: vec!["a virtual disk".into()],
            power_loss_protected: false,
        }),
        connections: [("unix".to_owned(), 0), ("tcp".to_owned(), 0), ("grpc".to_owned(), 0)].into(),
        uptime_ms: 61_000,
        pid: 99,
        journal_dir: "/var/lib/clad".into(),
        ..v1::StatusResponse::default()
    }
}

fn histogram(counts: &[u64], sum: u64) -> v1::Histogram {
    v1::Histogram { bounds: vec![100_000, 250_000, 1_000_000], counts: counts.to_vec(), sum }
}

fn share(what: &str, total: u64, held: &[(&str, u64)]) -> v1::Share {
    let holder = |(owner, amount): &(&str, u64)| v1::Holder { owner: (*owner).to_owned(), amount: *amount };
    let in_use = held.iter().map(|(_, amount)| amount).sum();
    let (owners, largest) = (held.len() as u64, held.iter().map(holder).collect());
    v1::Share { what: what.to_owned(), total, in_use, owners, largest }
}

/// The same under load.
pub(crate) fn loaded() -> v1::StatusResponse {
    let before = v1::Counters {
        uptime_us: 51_000_000,
        appended_records: [("unix".into(), 1000), ("tcp".into(), 0), ("grpc".into(), 0)].into(),
        appended_bytes: 1000,
        ..v1::Counters::default()
    };
    let now = v1::Counters {
        uptime_us: 61_000_000,
        appended_records: [("unix".into(), 124_000), ("tcp".into(), 5), ("grpc".into(), 0)].into(),
        appended_bytes: 25_000_000,
        acked_records: [("durable".into(), 123_000)].into(),
        rejected_records: [("too_large".into(), 3), ("busy".into(), 0)].into(),
        append_duration_ns: [
            ("received".into(), histogram(&[0, 0, 0, 0], 0)),
            ("durable".into(), histogram(&[0, 9000, 990, 10], 2_000_000_000)),
        ]
        .into(),
        sync_duration_ns: Some(histogram(&[5000, 0, 0, 0], 400_000_000)),
        batch_records: Some(v1::Histogram { bounds: vec![16, 64], counts: vec![0, 5000, 0], sum: 123_000 }),
        batch_bytes: Some(v1::Histogram { bounds: vec![65_536], counts: vec![5000, 0], sum: 30_000_000 }),
        ..v1::Counters::default()
    };
    v1::StatusResponse {
        counters: Some(now),
        counters_before: Some(before),
        offsets: Some(v1::Offsets { received: 125_234, written: 125_200, durable: 125_100 }),
        oldest_undurable_us: 850,
        oldest_segment_time: Some(1_000_000_000_000),
        lowest_offset: 100,
        retention: true,
        connections: [("unix".to_owned(), 12), ("tcp".to_owned(), 1), ("grpc".to_owned(), 0)].into(),
        producers: 13,
        inflight_bytes: 40_000,
        owners: vec![
            v1::OwnerBytes { owner: 1000, bytes: 7 },
            v1::OwnerBytes { owner: 1 << 63, bytes: 5 },
            v1::OwnerBytes { owner: u64::MAX, bytes: 1 },
        ],
        rings: Some(v1::Rings {
            count: 3,
            bytes: 4 << 20,
            data_bytes: 3 << 20,
            used_bytes: 2048,
            waiting_appends: 1,
            stalled: 2,
            unstored: 1,
        }),
        shares: vec![share("connections", 4096, &[("uid 1000", 12), ("network", 1)]), share("reads", 512, &[])],
        ..at_rest()
    }
}

const NOW: u64 = 8_200_000_000_000;

#[test]
fn a_daemon_at_rest() {
    let golden = "
         clad  0.0.1, pid 99, up 1 min 1 s, taking appends
          log  abababababababababababababababab, epoch 3 from offset 1,200
   durability  group_commit, highest ack durable; io engine blocking
    stands on  ext4 at / (rw)
               vda: cache write back
               a virtual disk
      offsets  1,234 received, 1,234 written, 1,234 durable; kept from 0
      journal  2 segments, the next is ready; 128.0 MiB in /var/lib/clad
         disk  1.0 GiB free of 4.0 GiB (25 %), 64.0 MiB in reserve
      clients  grpc 0, tcp 0, unix 0; 0 producers known
    in flight  0 B of at most 16.0 MiB
configured by  defaults (no file)
    attention  nothing
";
    assert_eq!(format!("\n{}", screen::still(&at_rest(), NOW, 74)), golden);
}

#[test]
fn a_daemon_under_load() {
    let golden = "
        log  abababababababababababababababab, epoch 3, group_commit
    offsets  125,234 received, 125,200 written (34 behind), 125,100 durable (134
             behind); oldest not durable 850 µs; kept from 100
 records in  12,301/s, 2.4 MiB/s over 10.0 s: tcp 0.5, unix 12,300
    latency               per s       p50       p90       p99
             received         0         -         -         -
             durable     12,300    183 µs    250 µs    931 µs
             sync           500     50 µs     90 µs     99 µs
    batches  500/s of 24.6 records, 5.9 KiB on average
since start  rejected: too_large 3
    journal  2 segments, the next is ready; 128.0 MiB in /var/lib/clad; reaches
             back 2 h 0 min at least
       disk  1.0 GiB free of 4.0 GiB (25 %), 64.0 MiB in reserve
    clients  grpc 0, tcp 1, unix 12; 13 producers known
      rings  3 with 3.0 MiB for records; 2.0 KiB used, 1 append not drained; 2
             stalled; 1 not stored, without `posted`
  in flight  39.1 KiB of at most 16.0 MiB
";
    let status = loaded();
    let sample = lately(&status);
    assert_eq!(format!("\n{}", screen::live(&status, sample.as_ref(), NOW, 80)), golden);
    assert_eq!(words(&status, sample.as_ref()), []);
}

fn said(status: &v1::StatusResponse) -> Vec<(Weight, String)> {
    words(status, lately(status).as_ref()).into_iter().map(|word| (word.weight, word.text)).collect()
}

#[test]
fn a_journal_that_failed() {
    let failed = v1::StatusResponse {
        failed: true,
        failure: "write: EIO".into(),
        ready: false,
        not_ready_reason: "the journal failed".into(),
        degraded: [("recovery".to_owned(), "recovery failed: EIO".to_owned())].into(),
        ..at_rest()
    };
    let said = said(&failed);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].0 == Weight::Grave && said[0].1.contains("(write: EIO)") && said[0].1.contains("dmesg"),
        "{said:?}"
    );
    assert_eq!(said[1], (Weight::Mind, "Recovery failed: EIO.".to_owned()));
    let text = screen::still(&failed, NOW, 80);
    assert!(text.starts_with("         clad  0.0.1, pid 99, up 1 min 1 s, FAILED\n"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn who_set_what() {
    let set = v1::StatusResponse {
        config_files: vec!["/etc/clad/clad.toml".into()],
        config_overrides: vec!["--set log.level".into(), "CLAD_LOG__FORMAT".into()],
        ..at_rest()
    };
    let text = screen::still(&set, NOW, 120);
    assert!(
        text.contains("configured by  /etc/clad/clad.toml; over that --set log.level, CLAD_LOG__FORMAT\n"),
        "{text}"
    );
}

#[test]
fn a_disk_that_runs_full() {
    let low = |free: u64| v1::StatusResponse { disk_free_bytes: free, ..at_rest() };
    // Nearly: below a tenth, and room for some.
    let said_of = said(&low(350 << 20));
    assert!(
        said_of[0].1.starts_with("The disk is nearly full: 350.0 MiB free (8 %), room for 4 further"),
        "{said_of:?}"
    );
    assert!(said_of[0].1.ends_with("set a rule of [retention] and reload."), "{said_of:?}");
    // Full: no room for two.
    let said_of = said(&low(130 << 20));
    assert!(said_of[0].1.contains("room for 1 further segment of 64.0 MiB"), "{said_of:?}");
    // And refused for it; what the journal says of space is not said twice.
    let refused = v1::StatusResponse {
        ready: false,
        not_ready_reason: "the disk has no space for another segment".into(),
        degraded: [("space".to_owned(), "no room".to_owned())].into(),
        ..low(100 << 20)
    };
    let said_of = said(&refused);
    assert_eq!(said_of.len(), 2, "{said_of:?}");
    assert!(said_of[0].1.starts_with("Appends are refused: the disk has no space for another segment. Free space"));
    let text = screen::still(&refused, NOW, 80);
    assert!(text.contains("NOT taking appends"), "{text}");
}

#[test]
fn damage_losses_and_refusals() {
    let mut status = loaded();
    let counters = status.counters.as_mut().expect("counters");
    counters.corrupt_records = 20;
    counters.sync_failures = 1;
    counters.segments_unprepared = 2;
    counters.dropped_records = [("invalid".to_owned(), 2), ("busy".to_owned(), 1500)].into();
    counters.rejected_records.insert("busy".to_owned(), 7);
    status.inflight_bytes = 15 << 20;
    let said = said(&status);
    let texts: Vec<&str> = said.iter().map(|(_, text)| text.as_str()).collect();
    assert!(texts[0].contains("(20 since the start)") && texts[0].contains("clactl verify /var/lib/clad"));
    assert!(texts[1].contains("failed 1 write since"), "{texts:?}");
    assert!(texts[2].starts_with("1,502 records dropped since the start (busy 1,500, invalid 2)"), "{texts:?}");
    assert!(texts[3].starts_with("7 records refused just now (busy 7)"), "{texts:?}");
    assert!(texts[4].contains("segment_bytes") && texts[5].contains("senders wait"), "{texts:?}");
    assert_eq!(texts.len(), 6);
    // Where no segment can be had, that none was ready in time is beside the point.
    status.ready = false;
    status.not_ready_reason = "no further segment can be opened".to_owned();
    let refused = self::said(&status);
    assert!(refused.iter().any(|(_, text)| text.starts_with("Appends are refused: no further segment")), "{refused:?}");
    assert!(!refused.iter().any(|(_, text)| text.contains("faster than the next one")), "{refused:?}");
}

#[test]
fn a_level_that_is_not_offered() {
    let weak = v1::StatusResponse { highest_ack: v1::AckLevel::Written.into(), ..at_rest() };
    assert!(said(&weak)[0].1.ends_with("storage: move [journal] dir to a disk that can keep it."), "an older daemon");
    let reasoned = v1::StatusResponse { not_durable_reason: "it is memory; set journal.dir".into(), ..weak.clone() };
    assert_eq!(said(&reasoned)[0].1, "`durable` is not offered on this log's storage: it is memory; set journal.dir.");
    let by_choice = v1::StatusResponse { policy: v1::DurabilityPolicy::FireAndForget.into(), ..weak };
    assert_eq!(said(&by_choice), []);
}

#[test]
fn status_sends_nobody_to_status() {
    let mut status = loaded();
    let line = "clients were refused in the last minute for want of a connection: `clactl status` names who holds most";
    status.degraded = [("shares".to_owned(), line.to_owned())].into();
    assert!(said(&status)[0].1.ends_with("`clactl status` names who holds most."), "for `top`, which has no such row");
    let screen = screen::still(&status, NOW, 200);
    assert!(screen.contains("for want of a connection: `shares` names who holds most."), "{screen}");
    assert!(!json(&status)["attention"].to_string().contains("clactl status"));
}

#[test]
fn who_has_how_much_is_named() {
    let mut status = loaded();
    let row = |status: &v1::StatusResponse| {
        let screen = screen::still(status, NOW, 90);
        screen.lines().find_map(|line| line.split_once("shares  ")).map(|(_, row)| row.to_owned())
    };
    assert_eq!(row(&status).as_deref(), Some("connections 13 of 4,096: uid 1000 12, network 1"));
    status.shares = vec![share("inflight_bytes", 16 << 20, &[("uid 7", 1 << 20)])];
    status.shares[0].owners = 3;
    assert_eq!(row(&status).as_deref(), Some("inflight_bytes 1.0 MiB of 16.0 MiB: uid 7 1.0 MiB, and 2 others"));
    status.shares.clear();
    assert_eq!(row(&status), None);
}

#[test]
fn for_programs() {
    let value = json(&loaded());
    for (pointer, golden) in [
        ("/log_id", json!("abababababababababababababababab")),
        ("/epoch", json!(3)),
        ("/durability", json!("group_commit")),
        ("/io_engine", json!("blocking")),
        ("/highest_ack", json!("durable")),
        ("/offsets/received", json!(125_234)),
        ("/offsets/written", json!(125_200)),
        ("/offsets/durable", json!(125_100)),
        ("/segments", json!(2)),
        ("/bytes", json!(134_217_728)),
        ("/failed", json!(false)),
        ("/connections/unix", json!(12)),
        ("/rings/used_bytes", json!(2048)),
        ("/rings/stalled", json!(2)),
        ("/rings/unstored", json!(1)),
        ("/shares/0/what", json!("connections")),
        ("/shares/0/largest/0", json!({ "owner": "uid 1000", "amount": 12 })),
        ("/shares/1/in_use", json!(0)),
        ("/disk/reserve_bytes", json!(64 << 20)),
        ("/recent/window_ms", json!(10_000)),
        ("/recent/records_per_second/unix", json!(12_300.0)),
        ("/recent/append_latency_us/durable/count", json!(10_000)),
        ("/recent/append_latency_us/received/p50", Value::Null),
        ("/recent/sync_latency_us/p50", json!(50.0)),
        ("/totals/rejected_records/too_large", json!(3)),
        ("/attention", json!([])),
    ] {
        assert_eq!(value.pointer(pointer), Some(&golden), "{pointer}");
    }
}
