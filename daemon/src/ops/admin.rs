//! The admin service: `clad.v1.Admin` over `admin.sock`, for users that may open that socket (mode 0660), and over TLS on
//! `[ingest.grpc]` for peers whose rule allows it.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clad_journal::io::device::{Substrate, WriteCache};
use clad_journal::{Accepting, OriginEntry, Watermarks};
use clad_proto::grpc::v1::admin_server::Admin;
use clad_proto::grpc::{to_status, v1};
use clad_proto::{AckLevel, DurabilityPolicy};
use tonic::{Request, Response, Status};

use crate::ingest::rings::Rings;
use crate::life::services::Services;
use crate::ops::health::{State, journal_failed};
use crate::ops::metrics;
use crate::ops::shares::Shares;

/// Longest that a sync or a rotation is waited for.
const ADMIN_REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Sources of what the service reports.
pub(crate) struct AdminService {
    pub(crate) services: Services,
    pub(crate) policy: DurabilityPolicy,
    pub(crate) highest: AckLevel,
    /// Highest level that a sync can reach on the log's storage.
    pub(crate) reach: AckLevel,
    /// Reason why no level above `written` is honest, and what to do; empty where one is.
    pub(crate) not_durable: String,
    pub(crate) shares: Shares,
    /// There once all are.
    pub(crate) listeners: Arc<OnceLock<HashMap<String, String>>>,
}

/// Implements the generated trait; a newtype because the trait cannot stand on an `Arc`.
#[derive(Clone)]
pub(crate) struct AdminHandler(pub(crate) Arc<AdminService>);

impl AdminService {
    fn cursors(&self) -> v1::CursorsResponse {
        let cursors = &self.shares.reads.cursors;
        let shown = cursors.all().into_iter().map(|look| v1::NamedCursor {
            name: look.cursor.name,
            owner: look.cursor.owner,
            epoch: look.cursor.epoch,
            offset: look.cursor.offset,
            committed: u64::try_from(look.cursor.committed_ns).unwrap_or(0),
            hold: look.cursor.hold,
            lost: look.lost,
            lag_records: look.lag_records,
            note: look.cursor.note.into(),
        });
        let held_bytes = self.services.journal.held_bytes();
        v1::CursorsResponse { cursors: shown.collect(), max: cursors.max() as u64, held_bytes }
    }

    fn status(&self) -> v1::StatusResponse {
        let s = self.services.journal.status();
        let report = self.services.journal.report();
        let m = s.watermarks;
        let (origin, config) = (self.services.origin.snapshot(), &self.services.config.journal);
        let State { not_ready, degraded } = self.services.health.state();
        // The journal's event of a failure reaches the state of the daemon a moment after this status has it.
        let not_ready = not_ready.map(|refused| refused.why).or(s.failure.as_deref().map(journal_failed));
        v1::StatusResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            log_id: s.log_id.to_vec().into(),
            epoch: m.epoch,
            epoch_first_offset: m.epoch_first,
            policy: v1::DurabilityPolicy::from(self.policy).into(),
            io_engine: s.engine.engine.name().to_owned(),
            io_engine_reason: s.engine.why,
            io_fallbacks: s.engine.fallbacks.iter().map(ToString::to_string).collect(),
            inline_batches: s.inline_batches,
            highest_ack: v1::AckLevel::from(self.highest).into(),
            offsets: Some(v1::Offsets { received: m.received, written: m.written, durable: m.durable }),
            lowest_offset: s.lowest_offset,
            segments: s.segments as u64,
            bytes: s.bytes,
            failed: s.failure.is_some(),
            failure: s.failure.unwrap_or_default(),
            ready: not_ready.is_none(),
            not_ready_reason: not_ready.unwrap_or_default(),
            disk_free_bytes: s.space.free,
            disk_total_bytes: s.space.total,
            substrate: Some(substrate(&self.services.substrate, config.power_loss_protected)),
            policy_reason: self.services.grounds.clone(),
            not_durable_reason: self.not_durable.clone(),
            segments_recycled: s.recycled,
            recovery: Some(v1::Recovery {
                summary: report.to_string(),
                clean: report.clean,
                duration_ms: report.took_ns / 1_000_000,
                truncated_bytes: report.quarantined_bytes,
                rewritten_bytes: report.rewritten_bytes,
                records: report.rewritten_records,
            }),
            connections: self.shares.connections.by_transport(),
            producers: s.producers as u64,
            inflight_bytes: s.in_flight_bytes as u64,
            uptime_ms: u64::try_from(self.services.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            pid: std::process::id(),
            config_files: origin.files,
            config_overrides: origin.overrides,
            journal_dir: config.dir.display().to_string(),
            listeners: self.listeners.get().cloned().unwrap_or_default(),
            counters: Some(metrics::counters(self.services.started)),
            counters_before: self.services.recent.oldest(),
            degraded: degraded.into_iter().map(|(cause, line)| (cause.to_owned(), line)).collect(),
            oldest_undurable_us: micros(s.oldest_undurable.unwrap_or_default()),
            oldest_segment_time: s.oldest_segment_ns.and_then(|ns| u64::try_from(ns).ok()),
            segment_bytes: config.segment_bytes,
            reserve_free_bytes: config.reserve_free,
            prepared: s.prepared,
            retention: self.services.journal.retention().removes(),
            inflight_limit_bytes: self.shares.inflight.total() as u64,
            rings: Some(rings(&self.shares.rings)),
            shares: self.shares.snapshot(&self.services.journal),
            cursors: Some(self.cursors()),
            origins: s.origins.iter().map(origin_of).collect(),
            owners: s.owners.iter().map(|&(owner, bytes)| v1::OwnerBytes { owner, bytes }).collect(),
        }
    }
}

fn origin_of(entry: &OriginEntry) -> v1::Origin {
    v1::Origin {
        owner: entry.owner,
        log_id: entry.origin.source.to_vec().into(),
        stream: entry.origin.stream.as_str().to_owned(),
        epoch: entry.last.epoch,
        end: entry.last.end(),
        last_offset: entry.last.offset,
        last_count: entry.last.count,
        last_crc: entry.last.payload_checksum,
        lost: entry.is_lost,
    }
}

fn rings(rings: &Rings) -> v1::Rings {
    let ((count, bytes), usage) = (rings.totals(), rings.usage());
    v1::Rings {
        count: count as u64,
        bytes: bytes as u64,
        data_bytes: usage.data_bytes,
        used_bytes: usage.used_bytes,
        waiting_appends: usage.waiting,
        stalled: rings.stalled() as u64,
        unstored: rings.unstored().0 as u64,
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn substrate(s: &Substrate, power_loss_protected: bool) -> v1::Substrate {
    let device = |d: &clad_journal::io::device::Device| v1::Device {
        name: d.name.clone(),
        cache: match d.write_cache {
            WriteCache::WriteBack => "write back",
            WriteCache::WriteThrough => "write through",
            WriteCache::Unknown => "unknown",
        }
        .to_owned(),
        model: d.model.clone().unwrap_or_default(),
        rotational: d.rotational,
        logical_block_bytes: d.logical_block,
    };
    v1::Substrate {
        filesystem: s.filesystem.clone(),
        mount_point: s.mount_point.display().to_string(),
        mount_options: s.mount_options.join(","),
        devices: s.devices.iter().map(device).collect(),
        notes: s.notes.clone(),
        power_loss_protected,
    }
}

#[tonic::async_trait]
impl Admin for AdminHandler {
    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        let admin_service = self.0.clone();
        let status = tokio::task::spawn_blocking(move || admin_service.status()).await;
        status.map(Response::new).map_err(|e| Status::internal(e.to_string()))
    }

    async fn rotate(&self, _: Request<v1::RotateRequest>) -> Result<Response<v1::RotateResponse>, Status> {
        let answer = tokio::time::timeout(ADMIN_REQUEST_TIMEOUT, self.0.services.journal.rotate()).await;
        let answer = answer.map_err(|_| Status::deadline_exceeded("the segment was not sealed within a minute"))?;
        let sealed = answer.map_err(|_| Status::unavailable("clad is stopping"))?.map_err(Status::unavailable)?;
        let active = self.0.services.journal.active_segment();
        Ok(Response::new(match sealed {
            Some((number, first_offset, end_offset)) => {
                v1::RotateResponse { sealed_segment: Some(number), first_offset, end_offset, active_segment: active }
            }
            None => v1::RotateResponse { active_segment: active, ..Default::default() },
        }))
    }

    async fn sync(&self, _: Request<v1::SyncRequest>) -> Result<Response<v1::SyncResponse>, Status> {
        if self.0.reach < AckLevel::Durable {
            let text =
                "nothing can be made durable on this log's storage (`clactl status`); the kernel has what is `written`";
            return Err(Status::failed_precondition(text));
        }
        let mut watermarks = self.0.services.journal.subscribe();
        let failures = watermarks.borrow().failures;
        let target = self.0.services.journal.request_sync();
        let has_failed = |m: &Watermarks| m.failures != failures || m.accepting == Accepting::Failed;
        let reached = watermarks.wait_for(|m| m.durable >= target || has_failed(m));
        let reached = tokio::time::timeout(ADMIN_REQUEST_TIMEOUT, reached).await;
        let m = *reached
            .map_err(|_| Status::deadline_exceeded("the disk did not finish the sync within a minute"))?
            .map_err(|_| Status::unavailable("clad is stopping"))?;
        match has_failed(&m) {
            false => Ok(Response::new(v1::SyncResponse { durable: m.durable })),
            true => Err(Status::unavailable("the journal has failed and recovers by itself; sync again then")),
        }
    }

    async fn drop_origin(
        &self,
        request: Request<v1::DropOriginRequest>,
    ) -> Result<Response<v1::DropOriginResponse>, Status> {
        let (asked, journal) = (request.into_inner(), &self.0.services.journal);
        let named = |entry: &OriginEntry| {
            let is_it = entry.origin.source[..] == asked.log_id[..] && entry.origin.stream.as_str() == asked.stream;
            is_it && asked.owner.is_none_or(|owner| owner == entry.owner)
        };
        let found: Vec<OriginEntry> = journal.origins().into_iter().filter(named).collect();
        let entry = match found.as_slice() {
            [] => return Err(Status::not_found("this log has nothing of that stream")),
            [entry] => entry,
            several => {
                let owners: Vec<String> = several.iter().map(|entry| entry.owner.to_string()).collect();
                let text = format!("several owners forward that stream: say which of {}", owners.join(", "));
                return Err(Status::failed_precondition(text));
            }
        };
        journal.drop_origin(entry);
        // Before that is in the log, a crash would bring it back.
        let forgotten = tokio::time::timeout(ADMIN_REQUEST_TIMEOUT, journal.forgotten(&entry.tombstone_id())).await;
        forgotten.map_err(|_| {
            Status::deadline_exceeded(
                "it is dropped, and the log did not say so durably within a minute: a crash may undo it",
            )
        })?;
        tracing::info!(
            log = %clad_proto::LogId::from_bytes(entry.origin.source),
            stream = entry.origin.stream.as_str(),
            end = entry.last.end(),
            "origin dropped"
        );
        Ok(Response::new(v1::DropOriginResponse { origin: Some(origin_of(entry)) }))
    }

    async fn segments(&self, _: Request<v1::SegmentsRequest>) -> Result<Response<v1::SegmentsResponse>, Status> {
        let journal = self.0.services.journal.clone();
        let all = tokio::task::spawn_blocking(move || journal.segments()).await;
        let all = all.map_err(|e| Status::internal(e.to_string()))?;
        let time = |t: Option<i64>| t.map(|t| u64::try_from(t).unwrap_or(0));
        let segment = |s: clad_journal::SegmentSummary| v1::Segment {
            number: s.number,
            first_offset: s.first_offset,
            end_offset: s.end_offset,
            bytes: s.bytes,
            sealed: s.sealed,
            min_time: time(s.times_ns.map(|t| t.0)),
            max_time: time(s.times_ns.map(|t| t.1)),
            records: s.end_offset - s.first_offset,
            file: clad_journal::format::segment_name(s.number),
        };
        Ok(Response::new(v1::SegmentsResponse { segments: all.into_iter().map(segment).collect() }))
    }

    async fn cursors(&self, _: Request<v1::CursorsRequest>) -> Result<Response<v1::CursorsResponse>, Status> {
        Ok(Response::new(self.0.cursors()))
    }

    async fn drop_cursor(
        &self,
        request: Request<v1::DropCursorRequest>,
    ) -> Result<Response<v1::DropCursorResponse>, Status> {
        let name = request.into_inner().name;
        match self.0.shares.reads.cursors.drop_by_admin(&name).await {
            Ok(true) => Ok(Response::new(v1::DropCursorResponse {})),
            Ok(false) => Err(Status::not_found(format!("there is no cursor of the name {name:?}"))),
            Err(error) => Err(to_status(&error)),
        }
    }
}
