"""The management interface (`/manage/v1`): HTTP, tokens, the dashboard. The calls stand in `subjects`."""
