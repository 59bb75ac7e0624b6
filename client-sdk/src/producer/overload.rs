//! Calls that follow the rule for a lack of room.
//!
//! * Room is `max_buffered_bytes`. A record that goes straight into a ring of shared memory needs none of it, and is
//!   never dropped again.
//! * Only appends that were never sent are dropped for others: in the inbox, in the session, or waiting for room in a
//!   ring. They have no sequence yet, so none is missing.
//! * Nothing here waits longer than the rule says, nor for another thread but for the short locks of the producer.

use super::{
    batch::Batch,
    call::{Call, Overload},
    shared::{APPEND_OVERHEAD, Shared},
    ticket::Ticket,
};
use crate::{
    AppendError, DropReason, SendError, SubmitError, lock::lock, receipt::TicketSender, thread_wait::wait_for,
    waiters::Claim,
};
use clad_proto::{EncodeError, max_severity};
use std::{sync::Arc, time::Duration};
use tokio::sync::{OwnedSemaphorePermit, TryAcquireError};

/// Tries to make room, where others take it.
const MAKE_ROOM_TRIES_MAX: usize = 4;
/// Records below a severity are dropped a part of the room at a time, for each time all that waits is looked at.
const SEVERITY_DROP_PART: usize = 16;

/// Hands over a batch by the rules of a call. Whatever happens, it is empty then, and each of its records is handed
/// over or counted as dropped.
pub(super) fn offer_batch(shared: &Arc<Shared>, batch: &mut Batch, call: &Call) -> Result<Ticket, SendError> {
    let (sender, ticket) = Ticket::new(shared);
    match hand_over(shared, batch, call, Some(sender)) {
        Ok(Some(known)) => Ok(known),
        Ok(None) => Ok(ticket),
        Err(error) => Err(error),
    }
}

/// As [`offer_batch`], without a ticket.
pub(super) fn post_batch(shared: &Arc<Shared>, batch: &mut Batch, call: &Call) -> Result<(), SendError> {
    hand_over(shared, batch, call, None).map(drop) // an error that is known is noted as that ticket is dropped
}

/// Counts a record that could not be encoded.
pub(super) fn refuse(shared: &Shared, error: EncodeError) -> SendError {
    shared.drop_unsubmitted(DropReason::TooLarge, 1);
    SubmitError::Record { index: 0, error }.into()
}

fn hand_over(
    shared: &Arc<Shared>,
    batch: &mut Batch,
    call: &Call,
    ticket: Option<TicketSender>,
) -> Result<Option<Ticket>, SendError> {
    shared.is_here()?;
    if batch.is_empty() {
        return Err(SubmitError::Empty.into());
    }
    let level = call.level.or(shared.options.level);
    if let Some(known) = shared.push_batch(batch, level) {
        batch.clear();
        return Ok(Some(known?));
    }
    let count = batch.count();
    let handed_over = room(shared, batch, call).and_then(|permit| {
        let submitted = shared.submit_encoded(batch.builder(), level, permit, ticket);
        submitted.map_err(|error| if shared.has_ended() { DropReason::Ended } else { reason_of(&error) })
    });
    batch.clear();
    handed_over.map(|()| None).map_err(|reason| {
        if reason != DropReason::RingFull {
            shared.drop_unsubmitted(reason, count.into()); // a full ring has counted it
        }
        SubmitError::Dropped(reason).into()
    })
}

const fn reason_of(error: &SubmitError) -> DropReason {
    match error {
        SubmitError::RingFull => DropReason::RingFull,
        SubmitError::Record { .. } => DropReason::TooLarge,
        _ => DropReason::NoRoom,
    }
}

/// Room for a batch, by the rules of a call.
fn room(shared: &Arc<Shared>, batch: &mut Batch, call: &Call) -> Result<OwnedSemaphorePermit, DropReason> {
    let bytes = batch.len_bytes().saturating_add(APPEND_OVERHEAD);
    let permits = u32::try_from(bytes).map_err(|_| DropReason::TooLarge)?;
    if bytes > shared.options.max_buffered_bytes {
        return Err(DropReason::TooLarge);
    }
    if let Some(permit) = try_room(shared, permits)? {
        return Ok(permit);
    }
    shared.poll_completion_page();
    let wait = match call.overload.unwrap_or(shared.options.overload) {
        Overload::DropNewest => Duration::ZERO,
        Overload::Wait(wait) => wait,
        Overload::DropOldest => return make_room(shared, bytes, None)?.ok_or(DropReason::NoRoom),
        Overload::DropBelow { severity, wait } => {
            let builder = batch.builder();
            let highest = max_severity(builder.as_bytes(), builder.count());
            if highest < severity.0 {
                return try_room(shared, permits)?.ok_or(DropReason::Severity);
            }
            if let Some(permit) = make_room(shared, bytes, Some(severity.0))? {
                return Ok(permit);
            }
            wait
        }
    };
    if wait.is_zero() {
        return try_room(shared, permits)?.ok_or(DropReason::NoRoom);
    }
    let acquired = wait_for(shared.budget.clone().acquire_many_owned(permits), wait, || shared.poll_completion_page());
    acquired.ok_or(DropReason::Deadline)?.map_err(|_| DropReason::Ended)
}

fn try_room(shared: &Shared, permits: u32) -> Result<Option<OwnedSemaphorePermit>, DropReason> {
    match shared.budget.clone().try_acquire_many_owned(permits) {
        Ok(permit) => Ok(Some(permit)),
        Err(TryAcquireError::NoPermits) => Ok(None),
        Err(TryAcquireError::Closed) => Err(DropReason::Ended),
    }
}

/// Drops what was never sent until there is room, where that is enough.
fn make_room(
    shared: &Arc<Shared>,
    bytes: usize,
    below: Option<i32>,
) -> Result<Option<OwnedSemaphorePermit>, DropReason> {
    let mut held = None::<OwnedSemaphorePermit>;
    for attempt in 0..MAKE_ROOM_TRIES_MAX {
        let needed = bytes - held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        // Others may take what is free; what was dropped for this is kept.
        let free = if attempt == 0 { shared.budget.available_permits() } else { 0 };
        let missing = needed.saturating_sub(free).max(1);
        let wanted = match below {
            None => missing,
            Some(_) => missing.max(shared.options.max_buffered_bytes / SEVERITY_DROP_PART),
        };
        let freed = drop_unsent(shared, wanted, below);
        let is_last = freed.is_none();
        merge(&mut held, freed);
        let have = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if have >= bytes {
            return Ok(held.and_then(|mut held| held.split(bytes)));
        }
        let rest = try_room(shared, u32::try_from(bytes - have).unwrap_or(u32::MAX))?;
        if rest.is_some() {
            merge(&mut held, rest);
            return Ok(held);
        }
        if is_last {
            break;
        }
    }
    Ok(None)
}

fn merge(into: &mut Option<OwnedSemaphorePermit>, more: Option<OwnedSemaphorePermit>) {
    match (into, more) {
        (Some(into), Some(more)) => into.merge(more),
        (into @ None, more) => *into = more,
        (Some(_), None) => {}
    }
}

/// Drops appends that were never sent, oldest first, until they have given back `wanted` bytes; gives these, if any.
fn drop_unsent(shared: &Shared, wanted: usize, below: Option<i32>) -> Option<OwnedSemaphorePermit> {
    let size = |claim: &Claim| claim.permit.num_permits();
    let error = AppendError::Dropped { reason: DropReason::Oldest };
    let add = |dropped: &[(u32, Claim)]| {
        // Before a flush can end that waits for them.
        if dropped.iter().any(|(_, claim)| claim.is_released()) {
            shared.undelivered.add(error.clone());
        }
    };
    let (dropped, has_flushes) = {
        // Under its lock for as long as the task moves what it takes in: nothing is between the two.
        let mut session = lock(&shared.session);
        let mut dropped = session.drop_unsent(wanted, below, size);
        add(&dropped);
        let freed = dropped.iter().map(|(_, claim)| size(claim)).sum::<usize>();
        if freed < wanted {
            dropped.extend(shared.drop_items(wanted - freed, below, add));
        }
        (dropped, session.has_flushes())
    };
    let (any, mut room) = (!dropped.is_empty(), None::<OwnedSemaphorePermit>);
    for (count, mut claim) in dropped {
        match claim.is_report() {
            true => shared.counters.failed.add(count.into()),
            false => shared.add_drops(DropReason::Oldest, count.into()),
        }
        if !claim.is_report() {
            let permits = size(&claim);
            merge(&mut room, claim.permit.split(permits)); // a report's is no room
        }
        claim.resolve(&Err(error.clone()));
    }
    if any && has_flushes {
        shared.wake.notify_one(); // one may have waited for them
    }
    room
}
